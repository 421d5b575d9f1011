"""Whatever code does to its interpreter: the answer is this call's, and the next call gets one."""

import time

import pytest

from serve.environments.sandbox import Sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRICKS = {
    "builtins gone": (
        "import builtins\nfor n in ('len', 'repr', 'open', 'print', 'isinstance', 'Exception', 'type'): setattr(buil"
        "tins, n, None)"
    ),
    "builtins cleared": "import builtins; vars(builtins).clear()",
    "modules cleared": "import sys; sys.modules.clear()",
    "a trace that raises": "import sys\ndef t(*a): raise ValueError\nsys.settrace(t)",
    "a profile that ends": "import os, sys; sys.setprofile(lambda *a: os._exit(3))",
    "no stdout": "import sys; sys.stdout = None; sys.stderr = None",
    "another stdout": "import io, sys; sys.stdout = io.StringIO()",
    "closed stdout": "import sys; sys.stdout.close()",
    "descriptors closed": "import os\nfor fd in range(21):\n    try: os.close(fd)\n    except OSError: pass",
    "exit": "exit(3)",
    "at once": "import os; os._exit(0)",
    "abort": "import os; os.abort()",
    "a fault": "import ctypes; ctypes.string_at(0)",
    "recursion": "def f(): f()\nf()",
    "a limit too high": "import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "a limit too low": "import sys; sys.setrecursionlimit(60)",
    "os functions taken": "import os\nos.write = os.read = os.getpid = os._exit = None",
    "traceback taken": "import traceback; traceback.format_exception = None; 1/0",
    "kill init": "import os\nfor s in (9, 15, 2, 19): os.kill(1, s)",
    "kill all": "import os; os.kill(-1, 9)",
    "frames cleared": "import sys\nf = sys._getframe()\nwhile f: f.f_locals.clear(); f = f.f_back",
    "memory changed": (
        "import gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and o.get('__name__') == '__main__': "
        "o.clear()"
    ),
    "a repr that raises": "class A:\n    def __repr__(self): raise SystemExit\nA()",
    "a repr that is no text": "class A:\n    def __repr__(self): return 3\nA()",
    "lone surrogates": "class A:\n    def __repr__(self): return chr(0xd800)\nprint(chr(0xd800)); A()",
    "an error of lone surrogates": "raise ValueError(chr(0xd800))",
    "an error whose text raises": "class E(Exception):\n    def __str__(self): raise self\nraise E",
    "a class whose name is strange": "raise type('x' * 100000, (Exception,), {})",
    "a group of errors": "raise BaseExceptionGroup('g', [KeyboardInterrupt(), SystemExit()])",
    "nul in code": "x = '\0'",
    "surrogates in code": "x = '\udc80'",
    "no code": "",
    "deep code": "(" * 500 + ")" * 500,
    "deep lists": "x = []\nfor _ in range(100000): x = [x]\nx",
    "deep json": "import json; json.loads('[' * 200000)",
    "much": "'x' * 5_000_000",
    "much printed": "print('x' * 5_000_000)",
    "many lines": "x = 1\n" * 20000,
    "an int too long": "10 ** 100000",
    "an alarm": "import signal; signal.setitimer(0, 0.05)\nimport time; time.sleep(0.1)",
    "interrupts ignored": "import signal; signal.signal(2, signal.SIG_IGN)",
    "gone folder": "import os; os.mkdir('g'); os.chdir('g'); os.rmdir('/work/g')",
    "a garbage answer": "import os; os.write(9, b'\\xff' * 60000)",
    "answers of its own": "import os; os.write(9, (b'\\0\\0\\0\\x01x' * 3) * 9)",
    "answer closed": "import os; os.close(9)",
    "questions read": "import os, threading; threading.Thread(target=os.read, args=(8, 4), daemon=True).start()",
}


@pytest.mark.parametrize("name", TRICKS)
async def test_next_call_is_answered(own_box: Sandbox, name: str) -> None:
    begun = time.monotonic()
    await own_box.python(TRICKS[name], keep=True, timeout_s=0.7)
    result = await own_box.python("6 * 7", keep=True, timeout_s=1)
    if result.value != "42":
        result = await own_box.python("6 * 7", keep=True, timeout_s=1)
    assert result.value == "42"
    assert time.monotonic() - begun < 6
    assert (await own_box.python("6 * 7", keep=False, timeout_s=1)).value == "42"


async def test_child_of_a_fork_does_not_answer(own_box: Sandbox) -> None:
    code = "import os\nx = os.fork()\nx == 0"
    for _ in range(3):
        assert (await own_box.python(code, keep=True, timeout_s=2)).value == "False"
    assert (await own_box.python("7", keep=True, timeout_s=2)).value == "7"
    loop = "import os, time\nif os.fork() == 0:\n    time.sleep(0.2)\n    raise ValueError\n'parent'"
    assert (await own_box.python(loop, keep=True, timeout_s=2)).value == "'parent'"
    result = await own_box.python("import time; time.sleep(0.4); 'mine'", keep=True, timeout_s=2)
    assert (result.value, result.error) == ("'mine'", None)


async def test_answer_of_a_call_that_was_ended_is_not_the_next_ones(own_box: Sandbox) -> None:
    late = "import os, threading, time\ndef f():\n    while True: os.write(9, b'\\0\\0\\0\\1x' * 3); time.sleep(0.01)\n"
    await own_box.python(late + "threading.Thread(target=f, daemon=True).start()", keep=True, timeout_s=2)
    for n in range(5):
        assert (await own_box.python(f"{n}", keep=True, timeout_s=2)).value == str(n)


async def test_flood_of_answers_ends_at_its_time(own_box: Sandbox) -> None:
    begun = time.monotonic()
    result = await own_box.python("import os\nwhile True: os.write(9, b'x' * 65536)", keep=True, timeout_s=0.5)
    assert result.timed_out and time.monotonic() - begun < 3
    assert (await own_box.python("1", keep=True, timeout_s=2)).value == "1"


async def test_endless_loop_that_swallows_interrupts(own_box: Sandbox) -> None:
    code = "import signal\nx = signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    result = await own_box.python(code, keep=True, timeout_s=0.3)
    assert result.timed_out and result.restarted
    assert (await own_box.python("x", keep=True, timeout_s=2)).error_type == "NameError"


async def test_names_live_on_over_a_timeout(own_box: Sandbox) -> None:
    result = await own_box.python("x = 5\nimport time\ntime.sleep(60)", keep=True, timeout_s=0.3)
    assert result.timed_out and not result.restarted and result.error_type == "KeyboardInterrupt"
    assert (await own_box.python("x", keep=True, timeout_s=2)).value == "5"


SEARCH = """
import ctypes, re
known = re.compile(b"known-to-the-host-alone-[0-9]+")  # this pattern does not match itself
found = set()
for line in open("/proc/self/maps"):
    if " rw-p " in line:
        begin, end = (int(n, 16) for n in line.split()[0].split("-"))
        found.update(known.findall(ctypes.string_at(begin, end - begin)))
found
"""


async def test_interpreter_knows_nothing_that_the_host_wrote_or_ran(own_box: Sandbox) -> None:
    secret = "known-to-the-host-alone-{}"
    assert (await own_box.python(f"x = {secret.format(1)!r}\n{SEARCH}", keep=False, timeout_s=5)).value != "set()"
    assert (await own_box.python(SEARCH, keep=False, timeout_s=5)).value.count("alone-1") == 1  # its own earlier code
    await own_box.write({"/work/hidden": secret.format(2).encode()})
    await own_box.run(["true"], stdin=secret.format(3).encode() * 100, env={"X": secret.format(4)}, timeout_s=5)
    for keep in (True, False):
        result = await own_box.python(SEARCH, keep=keep, timeout_s=5)
        assert (result.value, result.error) == ("set()", None)


async def test_interpreter_can_not_be_told_apart_from_a_program_of_its_own(box: Sandbox) -> None:
    names = await box.python(
        "sorted(n for n in globals() if not n.startswith('__')), __name__", keep=False, timeout_s=2
    )
    assert names.value == "(['exit', 'quit'], '__main__')"
    assert (
        await box.python("import __main__, sys; vars(__main__) is globals(), sys.argv", keep=False, timeout_s=2)
    ).value == "(True, [''])"


async def test_what_code_leaves_running_ends_with_its_interpreter(own_box: Sandbox) -> None:
    code = (
        "import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid(); os.fork(); time.sleep(60)\n"
    )
    await own_box.python(code, keep=False, timeout_s=2)
    assert (await own_box.run(["bash", "-c", "ls -d /proc/[0-9]* | wc -l"], timeout_s=2)).stdout.strip() in ("3", "4")
