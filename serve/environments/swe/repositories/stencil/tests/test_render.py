from stencil import Template, render


def test_plain_text_stays() -> None:
    assert render("a { b } c") == "a { b } c"


def test_names_and_paths() -> None:
    assert render("{{ user.name }} {{ items.1 }}", user={"name": "Ada"}, items=[1, 2]) == "Ada 2"


def test_a_missing_name_is_empty() -> None:
    assert render("[{{ nothing }}]") == "[]"


def test_filters() -> None:
    assert render("{{ name|upper }}", name="ada") == "ADA"
    assert render('{{ name|default:"nobody" }}') == "nobody"


def test_filters_follow_each_other() -> None:
    assert render('{{ names|join:"-"|upper }}', names=["a", "b"]) == "A-B"


def test_escaping() -> None:
    assert render("{{ text }}", text="<b>") == "&lt;b&gt;"
    assert render("{{ text|safe }}", text="<b>") == "<b>"


def test_loops() -> None:
    assert render("{% for n in ns %}{{ loop.number }}{{ n }} {% end %}", ns="ab") == "1a 2b "


def test_a_loop_in_a_loop() -> None:
    source = "{% for row in rows %}{% for n in row %}{{ n }}{% end %};{% end %}"
    assert render(source, rows=[[1, 2], [3]]) == "12;3;"


def test_conditions() -> None:
    source = "{% if not ready %}wait{% else %}go{% end %}"
    assert render(source, ready=True) == "go"
    assert render(source, ready=False) == "wait"


def test_a_template_is_used_twice() -> None:
    template = Template("{{ a }}")
    assert template.render({"a": 1}) + template.render({"a": 2}) == "12"
