"""`clawrl chat`: talk to the model in the terminal, through the official OpenAI client.

What it leaves out: learning. It is an ordinary client: what you type next is what your answer is judged by.
"""

from rich.console import Console

from infra.admin import Running, openai_client
from infra.home import Home
from storage.records import new_id


def talk(home: Home, console: Console, message: str | None, session: str | None) -> None:
    """One turn with a message, a conversation without."""
    running = Running(home)
    client = openai_client(running)
    headers = {"X-Session-Id": session or new_id()}
    history: list[dict[str, str]] = []
    if message is None:
        console.print("[dim]Talk. Your next line tells how good the answer was. An empty line ends it.[/dim]")
    while True:
        try:
            said = message or console.input("[bold]you[/bold]  ").strip()
        except EOFError:
            return
        if not said:
            return
        history.append({"role": "user", "content": said})
        history.append({"role": "assistant", "content": _answer(client, running, history, headers, console)})
        if message is not None:
            return


def _answer(client, running: Running, history: list, headers: dict, console: Console) -> str:
    stream = client.chat.completions.create(
        model=running.settings.model.name, messages=history, stream=True, extra_headers=headers, max_tokens=512
    )
    version = stream.response.headers.get("x-weight-version", "?")
    console.print(f"[bold cyan]v{version}[/bold cyan]   ", end="")
    parts = []
    for chunk in stream:
        piece = chunk.choices[0].delta.content if chunk.choices else None
        if piece:
            parts.append(piece)
            console.out(piece, end="", highlight=False)
    console.print()
    return "".join(parts)
