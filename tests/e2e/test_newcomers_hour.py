"""The newcomer's hour: what stopped a first-time user once, each with the words that are there now.

A row is one friction: its place in the hour, what happened then, what is done again here, the words that answer it
now, and the words that were on the screen then and must be gone. Commands run in this process, where an exception that
a user would see as a traceback fails the row. As a control, every row fails with the words of then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from quietsum.errors import QuietsumError
from scenes import invoke, one_line, tiny_toml
from tiny import TinyTask

torch = pytest.importorskip("torch")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Friction:
    """``said`` makes the text that a user sees; ``now`` are in it, ``then`` are not."""

    place: str
    what: str
    said: Callable[[], str]
    now: tuple[str, ...]
    then: tuple[str, ...] = ()


def gaps(row: Friction, text: str) -> list[str]:
    """What is missing of a row's words, and what should be gone; empty if the friction is answered."""
    return [f"missing: {word}" for word in row.now if word not in text] + [
        f"still there: {word}" for word in row.then if word in text
    ]


# ------------------------------------------------------------------------------------------------ the scene

ROOT = Path(__file__).parents[2]
CLOUDS = "clouds_of_the_hour:Clouds"
DECLARED = (
    "--declare", "age=number 0..120", "--declare", "ward=category a b", "--declare", "back=category no yes",
    "--site", "north=100", "--site", "south=100", "--holdout", "volunteers.csv", "--holdout-public", "they agreed",
)  # fmt: skip
FROM = ("--from", "visits.csv", "--label", "back", "--site-column", "site", "--person-column", "patient")


def clouds() -> type:
    from torch import Tensor, nn

    from quietsum.tasks import Metrics, Settings

    class Clouds:
        """Two clouds of points; no baseline is stated for its score."""

        name, title, size, public = "clouds", "two clouds", 200, "made up for this test"
        person, settings = "writer", Settings(learning_rate=0.5, training={"epochs": 2, "batch_size": 50})

        def __init__(self) -> None:
            self.site_sizes = {"north": 60, "south": 100}  # there are 100 at north

        def model(self) -> nn.Module:
            return nn.Linear(2, 2)

        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

        def records(self) -> tuple[Tensor, Tensor]:
            labels = torch.arange(200) % 2
            return torch.randn(200, 2, generator=torch.Generator().manual_seed(0)) + 3.0 * labels[:, None], labels

        def sites(self) -> list[str]:
            return ["north", "south"] * 100

        def people(self) -> list[int]:
            return [row // 20 * 2 + row % 2 for row in range(200)]  # ten records each, all at one site

        def evaluate(self, model: nn.Module) -> Metrics:
            return Metrics(values={"auc": 0.413}, on="consented images", chance={"auc": 0.5})

    return Clouds


@pytest.fixture(scope="module", autouse=True)
def hour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a table, a finished run of it, a protected run that was its data's last, and a training."""
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("hour")
        patch.chdir(place)
        for name in ("QUIETSUM_WORKSPACE", "COLUMNS"):
            patch.delenv(name, raising=False)
        module = ModuleType("clouds_of_the_hour")
        module.Clouds = clouds()  # type: ignore[attr-defined]
        kept = {"name": "protected", "public": ""}
        module.Protected = type("Protected", (module.Clouds,), kept)  # type: ignore[attr-defined]
        patch.setitem(sys.modules, "clouds_of_the_hour", module)
        rows = [f"p{i // 2},{('north', 'south')[i // 2 % 2]},{30 + i % 40},{'ab'[i % 2]},{('no', 'yes')[i % 40 > 19]}"
                for i in range(200)]  # fmt: skip
        for name, some in (("visits.csv", rows), ("volunteers.csv", rows[::4])):
            Path(name).write_text("\n".join(["patient,site,age,ward,back", *some, ""]), encoding="utf-8")
        Path("new.csv").write_text("age,ward\n35,a\n66,b\n", encoding="utf-8")
        invoke("new", "visits.toml", *FROM, *DECLARED)
        text = Path("visits.toml").read_text(encoding="utf-8").replace("rounds = 60", "rounds = 3")
        Path("visits.toml").write_text(text, encoding="utf-8")
        assert "max_records = 4 }" in text
        whole = text.replace("record = { epsilon = 1.0, ", "record = { ").replace("= 4 }", "= 4, epsilon = 2.0 }")
        Path("people.toml").write_text(whole, encoding="utf-8")
        Path("tiny.toml").write_text(tiny_toml(), encoding="utf-8")
        Path("heart.toml").write_text("", encoding="utf-8")
        invoke("new", "heart.toml", "--force")
        for words in (("visits.toml", "--name", "visits"), ("people.toml", "--name", "people", "--workspace", "other")):
            assert invoke("run", *words).exit_code == 0
        made = invoke("train", "--task", CLOUDS, "--epsilon", 3, "--epochs", 2, "--batch-size", 50)
        assert made.exit_code == 0, made.output
        yield place


def did(*words: object) -> str:
    """What a command printed, in one line."""
    return one_line(invoke(*words).output)


def wide(*words: object) -> str:
    """What a command printed, in its lines."""
    return str(invoke(*words).output)


def refused(call: Callable[[], Any]) -> str:
    """The sentence with which Python code is refused."""
    try:
        call()
    except QuietsumError as error:
        return str(error)
    return "taken"


def trainer(**values: Any) -> Any:
    from torch import nn

    from quietsum import PrivacyConfig, PrivateTrainer

    torch.manual_seed(0)
    loss = {"loss": values.pop("loss")} if "loss" in values else {}
    stated: dict[str, Any] = {"epsilon": 3.0, "epochs": 2, "batch_size": 40, "noise": "fast"} | values
    return PrivateTrainer(nn.Linear(3, 2), PrivacyConfig(**stated), selfcheck=False, **loss)


def arrays() -> tuple[Any, Any]:
    import numpy as np

    labels = np.arange(80) % 2
    return np.random.default_rng(0).normal(size=(80, 3)) + 3.0 * labels[:, None], labels


def trained(*, on: Any = None, loss: Any = None, **options: Any) -> str:
    """What a training showed, and in what it ended."""
    screen = io.StringIO()
    with contextlib.redirect_stderr(screen), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = trainer(**({} if loss is None else {"loss": loss}))
        history = made.train(*(arrays() if on is None else on), **options)
    shown = " ".join(str(one.message) for one in told)
    return one_line(f"{screen.getvalue()} {shown} {history.stopped} after {len(history.epochs)} epochs")


def page(name: str, workspace: str = "quietsum-workspace") -> str:
    """The words of a report's page."""
    text = (Path(workspace) / "runs" / name / "report.html").read_text(encoding="utf-8")
    return one_line(re.sub(r"<[^>]+>", " ", re.sub(r"<style.*?</style>", "", text, flags=re.S)))


def training_name() -> str:
    (folder,) = Path("quietsum-workspace/training").iterdir()
    return folder.name


def person_figures() -> str:
    """Each ε per person that plan, run's report, show and the list print, at four decimals."""
    texts = [did("plan", "people.toml", "--workspace", "fresh"), did("show", "people", "--workspace", "other"),
             did("runs", "--workspace", "other"), page("people", "other")]  # fmt: skip
    found = {float(one) for text in texts for one in re.findall(r"ε (?:≤|=) (\d\.\d+|\d) per person", text)}
    return f"figures per person: {sorted(found)}"


def state_dict() -> str:
    from quietsum import load_model

    model = load_model(training_name())
    clouds()().model().load_state_dict(model.state_dict())
    return f"{type(model).__name__} in eval mode: {not model.training}"


def person_beyond(kind: str) -> str:
    if kind == "missing bound":
        return refused(lambda: trainer(epsilon=None, person_epsilon=4.0))
    made = trainer(epsilon=8.0, max_records=20)
    made.train(*arrays(), people=[row // 40 for row in range(80)])
    return one_line(str(made.person_guarantee()))


def attention() -> str:
    """Warnings of a small transformer's private step."""
    from torch import nn

    from quietsum import PrivacyConfig, PrivateTrainer
    from quietsum.learning.engines.vmap import hush

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.last = nn.Embedding(9, 8), nn.Linear(8, 2)
            self.layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)

        def forward(self, rows: Any) -> Any:
            mask = nn.Transformer.generate_square_subsequent_mask(rows.shape[1])
            return self.last(self.layer(self.words(rows), src_mask=mask).mean(1))

    rows = torch.randint(0, 9, (40, 4), generator=torch.Generator().manual_seed(0))
    config = PrivacyConfig(epsilon=8.0, epochs=1, batch_size=20, noise="fast")
    screen = io.StringIO()
    with contextlib.redirect_stderr(screen), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        hush()  # pytest forgets the filters that stand when a module was imported
        history = PrivateTrainer(Reader(), config, selfcheck=False).train(rows, rows[:, 0] % 2)
    return f"{screen.getvalue()} {[str(one.message) for one in told]} {history.stopped}"


def renamed() -> str:
    """The same protected rows under another name, in the same workspace."""
    text = Path("visits.toml").read_text(encoding="utf-8").replace('name = "visits"', 'name = "visits-v2"')
    Path("again.toml").write_text(text, encoding="utf-8")
    return did("run", "again.toml")


def raised() -> str:
    """The command that a refusal names, for all sites at once, in a copy of the workspace; then the run."""
    import shlex
    import shutil

    shutil.copytree("quietsum-workspace", "raised")
    told = did("run", "visits.toml", "--workspace", "raised")
    for part in told[told.index("quietsum ledger raise") :].split("; "):
        words = shlex.split(part)[1:]
        told += did(*words, "--workspace", "raised")
    return told + did("run", "visits.toml", "--workspace", "raised")


def too_few() -> str:
    """A site that holds more records than its plan declares."""
    invoke("new", "clouds.toml", "--task", CLOUDS.replace("Clouds", "Protected"))
    return did("run", "clouds.toml")


def plan_for_nothing() -> str:
    text = Path("visits.toml").read_text(encoding="utf-8").replace("epsilon = 1.0", "epsilon = 0.01")
    Path("nothing.toml").write_text(text, encoding="utf-8")
    return did("plan", "nothing.toml", "--workspace", "fresh")


def changed(name: str, old: str, new: str) -> str:
    text = Path(name).read_text(encoding="utf-8")
    assert old in text
    Path("changed.toml").write_text(text.replace(old, new), encoding="utf-8")
    return "changed.toml"


def missing_file() -> str:
    """A table that is not there: no run, and no book of any data is opened."""
    told = did("run", changed("visits.toml", 'table = "visits.csv"', 'table = "gone.csv"'), "--workspace", "untouched")
    books = did("ledger", "show", "--json", "--workspace", "untouched")
    return f"{told} {did('runs', '--workspace', 'untouched')} {books}"


def completed() -> str:
    from quietsum.cli.shared.options import complete_run, complete_task

    return f"{did('--help')} {complete_task('chest')} {complete_run('vis')}"


def narrow(columns: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", columns)
        lines = wide("plan", "visits.toml", "--workspace", "fresh").splitlines() + wide("runs").splitlines()
    return f"{' '.join(lines)} longest: {max(map(len, lines)) <= max(int(columns), 80)}"


def picture_of_shares() -> str:
    from quietsum.charts import svg
    from quietsum.privacy import Guarantee
    from quietsum.tradeoff import Outcome, analyze_privacy_utility_tradeoff
    from quietsum.tradeoff.picture import chart_of

    results = [
        Outcome(task="t", metric="accuracy", value=value, on="rows", seed=seed, epsilon=epsilon,
                delta=1e-5, guarantee=Guarantee(epsilon=epsilon, delta=1e-5, method="test"))
        for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0) for seed, value in enumerate((0.93, 0.999, 0.95))
    ]  # fmt: skip
    chart = chart_of(analyze_privacy_utility_tradeoff(results))
    highest = max(high for line in chart.series for _, high in line.bars)
    return f"highest bar {highest:g}, ticks {chart.x_marks}, html {svg(chart).count('>8<')}"


def notebook() -> str:
    from quietsum import forecast, load_plan

    plan = load_plan(Path("tiny.toml"))
    made = trainer()
    history = made.train(*arrays())
    found = [plan, forecast(plan), history, history.guarantee]
    return " ".join(type(one).__name__ for one in found if "<table" in one._repr_html_())


def about_sites() -> str:
    text = (ROOT / "docs/how-to/your-own-task.md").read_text(encoding="utf-8")
    return one_line(text[text.index("Across machines") :].split("```", 1)[0])


def folder_twice() -> str:
    Path("north").mkdir()
    Path("north/policy.toml").write_text("", encoding="utf-8")
    return did("keys", "node", "north")


def roster_text() -> str:
    from quietsum.federation.remote import federation

    return Path(str(federation.__file__)).read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------- the frictions

HOUR = (
    Friction(place="1.1", what="show -o wrote a file and did not say so", now=("wrote visits.svg",),
             said=lambda: did("show", "visits", "-o", "visits.svg")),
    Friction(place="1.2", what="the report had no date, no hash of the model, no word explained",
             now=("Begun 20", "model.safetensors", "What this means", "neighbours"), said=lambda: page("visits")),
    Friction(place="1.3", what="a run that was asked for ε per person showed ε per record first",
             now=("ε per person after each round", "any one person's records were used"),
             then=("ε per record after each round",),
             said=lambda: did("show", "people", "--workspace", "other")),
    Friction(place="1.4", what="one number in four roundings", now=("figures per person: [2.0]",), said=person_figures),
    Friction(place="1.5", what="an AUC of 0.413 stood there without a remark", now=("chance",),
             said=lambda: did("show", training_name())),
    Friction(place="2.1", what="training printed nothing at all", now=("epoch 1/2 · ε", "epoch 2/2 · ε 3.00 of 3"),
             said=lambda: trained(progress=True)),
    Friction(place="2.2", what="own images were called the public hold-out", now=("consented images",),
             then=("public hold-out",),
             said=lambda: did("train", "--task", CLOUDS, "--epsilon", 3, "--epochs", 1, "--workspace", "apart")),
    Friction(place="2.3", what="a training was in no list", now=("trained at one site", "finished"),
             then=("no runs in",), said=lambda: did("runs")),
    Friction(place="2.4", what="a training had no report", now=("report.html", "signed by the key"),
             said=lambda: did("report", training_name())),
    Friction(place="2.5", what="the ledger called a training's steps rounds", now=("steps from",),
             said=lambda: did("ledger", "show")),
    Friction(place="2.6", what="no ε per person could be asked of a trainer", now=("max_records = None is missing",),
             said=lambda: person_beyond("missing bound")),
    Friction(place="2.7", what="scores were accuracy and loss only", now=("auc",),
             said=lambda: did("show", training_name())),
    Friction(place="3.1", what="new wrote a δ that plan then called too large", now=("Nothing was spent",),
             then=("δ = 1e-05 is too large", "delta is too large"),
             said=lambda: did("plan", "visits.toml", "--workspace", "fresh")),
    Friction(place="3.2", what="noise looked superb and the model was worse than a coin",
             now=("nothing can be learnt", "What helps"), said=plan_for_nothing),
    Friction(place="3.3", what="nothing said that a run was the last one ever",
             now=("none is stated, so this run fixes its own", "is the last one that fits"),
             said=lambda: did("plan", "visits.toml", "--workspace", "fresh")),
    Friction(place="3.4", what="a refusal named one bank at a time, five times over",
             now=("does not fit the lifetime of 'south' either", "--party north --party south", "wrote raised/runs"),
             said=raised),
    Friction(place="3.5", what="explain did not know what a lifetime is", now=("What one unit of a dataset may ever",),
             then=("not in the glossary",), said=lambda: did("explain", "lifetime")),
    Friction(place="3.6", what="another name gave the same rows a fresh budget", now=("--same-rows",),
             said=renamed),
    Friction(place="3.7", what="max_records kept a third of the rows, and plan counted all",
             now=("max_records = 4 leaves fewer where people have more", "privacy.person.kept"),
             said=lambda: did("plan", "visits.toml", "--workspace", "fresh")),
    Friction(place="3.8", what="a size was called 'a size', and no site was named",
             now=("site_sizes['north'] = 60 is less than what north holds",), then=("'a size'",), said=too_few),
    Friction(place="3.9", what="the last round looked overspent", now=("2.00 per person",),
             then=("of 1.9",), said=lambda: did("run", "people.toml", "--workspace", "overspent")),
    Friction(place="3.10", what="9.63e-06 % of a budget was left", now=("under 0.1 %",), then=("e-06 %",),
             said=lambda: did("plan", "visits.toml")),
    Friction(place="3.11", what="affordable rounds were counted by ε per record where the person's binds",
             now=("affordable 3 rounds at this noise",), then=("within the lifetime's ε = 8 per record",),
             said=lambda: did("plan", "people.toml", "--workspace", "fresh").replace("│", "")),
    Friction(place="3.12", what="a warning called δ the chance of the worst case", now=("random record in full",),
             then=("the chance of the worst case",), said=lambda: did("explain", "delta").replace("│ ", "")),
    Friction(place="3.13", what="load_state_dict did not take a federation's model", now=("Linear in eval mode: True",),
             said=state_dict),
    Friction(place="3.14", what="no page and no command said how to predict", now=("row,prediction,p_no,p_yes", "1,"),
             said=lambda: did("predict", "visits", "new.csv")),
    Friction(place="4.1", what="torch's remark on batching rules, three times over", now=("finished",),
             then=("performance drop",), said=attention),
    Friction(place="4.2", what="ε 572 per person, and only the number said so", now=("means nothing",),
             said=lambda: person_beyond("too much")),
    Friction(place="4.3", what="minutes of silence, and no estimate", now=("quietsum.learning.trainer",),
             said=lambda: one_line(str(trainer().train.__doc__))),
    Friction(place="5.1", what="what was meant, twice", now=("Did you mean 'run'?",),
             then=("Did you mean 'run'? Did you mean 'run'?",), said=lambda: did("rum")),
    Friction(place="5.2", what="--device gpu was taken", now=("no device that torch knows",),
             said=lambda: did("run", "heart.toml", "--device", "gpu")),
    Friction(place="5.3", what="a file was taken for a workspace", now=("is a file; name a folder",),
             said=lambda: did("plan", "heart.toml", "--workspace", "visits.csv")),
    Friction(place="5.4", what="a task by its path ended in importlib's words", now=('say "visits:VisitsTask"',),
             then=("relative import",), said=lambda: did("train", "--task", "./visits.py:VisitsTask", "--epsilon", 1)),
    Friction(place="5.5", what="heart was not known, the README's task", now=("is a task of sites", "quietsum run"),
             then=("is not known",), said=lambda: did("tradeoff", "--task", "heart")),
    Friction(place="5.6", what="a fraction was no number", now=("what this run costs",), then=("not a valid float",),
             said=lambda: did("spend", "-s", 1, "-q", "256/60000", "-T", 100, "-d", "1e-5")),
    Friction(place="5.7", what="a missing rate had no option's name", now=("pass --sample-rate",),
             said=lambda: did("calibrate", "--epsilon", 1, "--delta", "1e-5", "--steps", 100)),
    Friction(place="5.8", what="--resume without a run", now=("as in quietsum run --resume latest",),
             said=lambda: did("run", "--resume")),
    Friction(place="5.9", what="torch.optim.Adam was an AttributeError", now=("finished after 2 epochs",),
             said=lambda: trained(optimizer=torch.optim.Adam)),
    Friction(place="5.10", what="numpy arrays, and train(X, y)", now=("finished after 2 epochs",), said=trained),
    Friction(place="5.11", what="numpy arrays in a tuple", now=("finished after 2 epochs",),
             said=lambda: trained(on=(arrays(),))),
    Friction(place="5.12", what="nn.CrossEntropyLoss() was called with the model", now=("finished after 2 epochs",),
             said=lambda: trained(loss=torch.nn.CrossEntropyLoss())),
    Friction(place="5.13", what="ε = 1e6 trained without a word", now=("promises nothing: from about ln(1/δ) on",),
             said=lambda: did("train", "--task", CLOUDS, "--epsilon", "1e6", "--workspace", "apart")),
    Friction(place="5.14", what="no tab completion", now=("--install-completion", "chest-xray", "visits"),
             said=completed),
    Friction(place="5.15", what="80 columns always, and names broken over two lines",
             now=("visits-north", "longest: True", "untouched"), said=lambda: narrow("60")),
    Friction(place="5.16", what="an interval above 1 for accuracy, and no tick at ε 8",
             now=("highest bar 1,", "8.0)", "html 1"), said=picture_of_shares),
    Friction(place="5.17", what="only a guarantee showed as a table in a notebook",
             now=("Plan Forecast TrainingHistory Guarantee",), said=notebook),
    Friction(place="5.18", what="no PNG", now=("wrote epsilon.png",),
             said=lambda: did("curve", "-s", 1, "-q", 0.1, "-T", 100, "-d", 1e-5, "-o", "epsilon.png")),
    Friction(place="6.1", what="check said keys node, and the folder that party new had named was refused",
             now=("name a new one, north/keys for instance",), said=lambda: folder_twice()),
    Friction(place="6.2", what="an error named a command that does not exist", now=("keys admit",),
             then=("keys add",), said=lambda: one_line(roster_text())),
    Friction(place="6.3", what="a start that failed had opened the ledger", now=("gone.csv", "no runs in"),
             then=('"party":',), said=missing_file),
    Friction(place="6.4", what="what a class returns at a site when the file holds all sites",
             now=("a site its own records, the coordinator none",), said=about_sites),
)  # fmt: skip


@pytest.mark.parametrize("row", HOUR, ids=lambda row: row.place)
def test_a_friction_of_the_first_hour_is_answered(row: Friction) -> None:
    if row.place == "5.18":
        pytest.importorskip("matplotlib")
    text = row.said()
    assert "Traceback" not in text
    assert gaps(row, text) == [], text[:3000]


@pytest.mark.parametrize("row", HOUR, ids=lambda row: row.place)
def test_the_control_with_the_words_of_then_a_row_fails(row: Friction) -> None:
    assert row.what and gaps(row, " ".join(row.then))


def test_every_place_of_the_hour_is_there_once() -> None:
    places = [row.place for row in HOUR]
    wanted = {"1": 5, "2": 7, "3": 14, "4": 3, "5": 18, "6": 4}
    assert places == [f"{part}.{place}" for part, count in wanted.items() for place in range(1, count + 1)]
    assert TinyTask.name == "tiny"
