"""quietsum is light to import and quick to ask for help: heavy libraries load inside the code that needs them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

TRIES = 5  # the best of five: a limit on our code, not on how busy the machine is

NEVER = ("dp_accounting", "flwr", "mlflow", "opacus", "prv_accountant", "torch")
LATE = ("scipy.optimize", "scipy.stats")
NOT_AT_FIRST = ("numpy", "scipy", "rich", "typer")

REPORT = "import json, sys, time; start = time.process_time(); {code}; spent = time.process_time() - start; "
REPORT += "print(json.dumps([spent, sorted(sys.modules)]))"

HELP = "import runpy, sys; sys.argv = ['quietsum', '--help']; runpy.run_module('quietsum', run_name='__main__')"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter's answer; a failure shows what it wrote."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


def cost_of(code: str) -> tuple[float, set[str]]:
    """CPU seconds that ``code`` takes in a fresh interpreter, and the modules that are loaded afterwards."""
    seconds, modules = json.loads(python("-c", REPORT.format(code=code)).stdout)
    return seconds, set(modules)


def test_the_probe_sees_a_heavy_import() -> None:
    """The negative control: what the tests below look for is what an import leaves behind."""
    _, modules = cost_of("import scipy.stats")
    assert {"numpy", "scipy", *LATE} <= modules


def test_import_quietsum_loads_no_other_library() -> None:
    _, modules = cost_of("import quietsum")
    assert not modules & {*NEVER, *LATE, *NOT_AT_FIRST}


def test_import_quietsum_takes_less_than_a_tenth_of_a_second() -> None:
    assert min(cost_of("import quietsum")[0] for _ in range(TRIES)) < 0.1


def test_even_with_every_public_name_but_those_of_training_in_use_nothing_heavy_is_loaded() -> None:
    names = "set(quietsum.__all__) - {'PrivacyConfig', 'PrivateClassifier', 'PrivateTrainer', 'make_private'}"
    _, modules = cost_of(f"import quietsum; [getattr(quietsum, name) for name in {names}]")
    assert "numpy" in modules
    assert not modules & {*NEVER, *LATE, "rich", "typer"}


@pytest.mark.parametrize("name", ["PrivateTrainer", "PrivateClassifier", "PrivacyConfig", "make_private"])
def test_a_name_of_training_says_what_to_install_if_torch_is_missing(name: str) -> None:
    code = "import sys; sys.modules['torch'] = None\nimport quietsum\n"
    code += f"try:\n    quietsum.{name}\nexcept ImportError as error:\n    print(error)"
    assert (
        python("-c", code).stdout == f"{name} trains torch models; install them with: pip install 'quietsum[train]'\n"
    )


@pytest.fixture(scope="module")
def command() -> None:
    assert importlib.util.find_spec("quietsum.cli"), "the command line, quietsum.cli, is missing"


@pytest.mark.usefixtures("command")
def test_help_takes_less_than_half_a_second() -> None:
    """CPU time of the whole process as the operating system counts it, start of the interpreter included."""
    resource = pytest.importorskip("resource", reason="this system does not count the CPU time of child processes")

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return float(usage.ru_utime + usage.ru_stime)

    costs = []
    for _ in range(TRIES):
        before = spent()
        answer = python("-m", "quietsum", "--help")
        costs.append(spent() - before)
        assert "spend" in answer.stdout
    assert min(costs) < 0.5


@pytest.mark.usefixtures("command")
def test_help_loads_neither_numerical_nor_training_libraries() -> None:
    loaded = {line.rpartition("|")[2].strip() for line in python("-X", "importtime", "-c", HELP).stderr.splitlines()}
    assert "quietsum.cli" in loaded
    assert not loaded & {*NEVER, *LATE, "numpy"}


PRIVATE_STEP = (
    "import torch; from quietsum.learning.clipping import Flat; "
    "from quietsum.learning.step import PrivateStep, cross_entropy; "
    "step = PrivateStep.build(torch.nn.Linear(3, 2), cross_entropy, Flat(max_norm=1.0), noise_multiplier=1.0, "
    "rate=0.1, expected_batch=4.0); step.gradient((torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 0])))"
)
WEIGHED = "; weights = torch.ones(2, requires_grad=True); torch.autograd.grad(weights * 2, weights, torch.ones(2))"


def test_a_private_step_needs_no_symbolic_algebra() -> None:
    """Torch loads sympy, most of a second, for gradients of several numbers with a weight for each."""
    assert "sympy" not in cost_of(PRIVATE_STEP)[1]
    assert "sympy" in cost_of(PRIVATE_STEP + WEIGHED)[1]  # the control
