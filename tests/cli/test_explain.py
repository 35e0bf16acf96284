"""``quietsum explain``: every parameter and term has its four texts, and the numbers in them are right."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import Result
from typer.testing import CliRunner

from quietsum import ExactAccountant, Gaussian, PoissonSampled, RenyiAccountant, calibrate_noise
from quietsum.cli.app import app
from quietsum.glossary import Term, look_up, nearest, sections, terms
from quietsum.privacy import ClassicalAccountant, ConcentratedAccountant, Group, PureDP

WORDS_OF_THE_TABLES = """
noise_multiplier; max_grad_norm; sample_rate; steps; noise_multiplier_user; max_grad_norm_user; sample_rate_user;
steps_user; σ; C; q; T; σ_user; C_user; q_user; T_user; none; sample; user; hybrid; target_delta; sample_history;
user_history; cumulative_sample_epsilon; cumulative_user_epsilon; target_epsilon; steps_per_round; num_rounds;
local_epochs; round_num; orders; rdp_curve; rdp_at; compose_gaussian; compose_rdp; epsilon; delta; total_rdp_mass;
gaussian_rdp; DPGuarantee; order; α; conversion; composition; sensitivity; z; privacy_high; privacy_medium; performance;
curious server; malicious client; data poisoning; model poisoning; backdoor; label flipping; collusion; SignGuard; Krum;
pairwise masking; secure aggregation; secure_agg_enabled; dp_enabled; achieved_epsilon; sampling_probability;
training_steps; mechanism; accounting; epochs; batch_size; learning_rate; use_opacus; noise_type; privacy_accounting;
membership inference; model inversion; gradient attacks; attribute privacy; identity privacy; temporal privacy;
pure dp; approximate dp; rdp; zcdp; local dp; central dp; bayesian dp; laplace mechanism; exponential mechanism;
gaussian mechanism; advanced composition; naive composition; optimal composition; group privacy; moments accountant;
randomized response; RAPPOR; count mean sketch; shuffle model; posterior sampling; max_epsilon; poisson sampling;
fixed-size; shuffling; amplification; neighbouring relation; unit; record; person; client; observer; budget; ledger;
filter; odometer; trade-off curve; advantage; TPR; cohort; party; site; node; account; holder; coordinator; trust model;
input validation; outlier detection;
honest-but-curious; η; ρ; δ; ε; Δ; is_budget_exhausted; get_budget_spent; privacy budget; threshold secret sharing;
attackers; rule; robust aggregation; breakdown point; groups; root set; trust; drill; finding; alert; attack detection;
label flip; lie; a little is enough; median; trimmed mean; multi-krum; rejected; suspects; layers of defence;
PrivacyPreservingTrainer; OpacusDPTrainer; ManualDPTrainer; create_privacy_config;
record_round; get_epsilon; get_privacy_spent; get_cumulative_sample_epsilon; get_cumulative_user_epsilon; resume;
mlflow; tls; alerting; data quality; homomorphic encryption; analyze_privacy_utility_tradeoff; STGCN_PRISM; num_joints;
MediaPipe; PyTorch Geometric; PrivacyAccountant; make_private; PrivacyEngine; DP decoding; DP score release;
retrieval ranking; debug; logging; troubleshooting; poor convergence; memory; out of memory; opacus import error;
privacy budget exhausted; FitRes; flower; anonymity; concentrated; adaptive composition;
GDPR; defense in depth; spatial-temporal privacy;
information-theoretic; mask; mironov; adjacent; tenant-safe view
"""


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments])


@pytest.mark.parametrize("word", [" ".join(word.split()) for word in WORDS_OF_THE_TABLES.split(";")])
def test_every_word_of_the_tables_is_explained(word: str) -> None:
    result = explain("--", word)
    assert result.exit_code == 0, result.stderr
    for part in ("meaning", "effect", "range", "common error", "next: quietsum"):
        assert part in result.stdout


@pytest.mark.parametrize("term", terms(), ids=lambda term: term.name)
def test_every_entry_is_complete_and_leads_somewhere(term: Term) -> None:
    for text in (term.meaning, term.effect, term.range, term.common_error):
        assert len(text) >= 20 and text.endswith((".", '."')), text
    assert term.see
    for other in term.see:
        assert look_up(other).name == other != term.name
    for word in (term.name, *term.aliases):
        assert look_up(word) is term
    assert max(map(len, explain("--", term.name).stdout.splitlines())) <= 80


def test_every_rule_attack_and_layer_that_a_plan_can_name_is_explained_in_the_section_on_defence() -> None:
    from quietsum.aggregation.robust import RULES
    from quietsum.aggregation.robust.before import BEFORE
    from quietsum.defence.detection.findings import RULES as DETECTORS
    from quietsum.plan.attack import ATTACK_KINDS
    from quietsum.plan.resolution.layers import LAYERS

    attacks = [kind if kind != "gaussian" else "gaussian attack" for kind in ATTACK_KINDS]  # a mechanism, too
    for word in ("mean", *RULES, *BEFORE, *attacks):
        assert look_up(word).section == "defence", word
    for word in (*LAYERS, "input validation", "curious server"):
        assert look_up(word).name, word
    assert all(name in look_up("finding").range for name in DETECTORS)


def test_no_two_entries_share_a_name() -> None:
    names = [term.name for term in terms()]
    assert len(set(names)) == len(names)


def test_without_a_term_all_are_listed() -> None:
    shown = explain().stdout
    assert all(term.name in shown for term in terms())
    assert max(map(len, shown.splitlines())) <= 80
    assert len(json.loads(explain("--json").stdout)["terms"]) == len(terms())
    assert set(sections()) == {"parameters", "definitions", "mechanisms", "federation", "defence", "practice"}


def test_json_holds_all_texts() -> None:
    values = json.loads(explain("sigma", "--json").stdout)
    assert values["name"] == "noise_multiplier"
    assert {"meaning", "effect", "range", "common_error", "aliases", "see", "symbol"} <= set(values)


def test_capital_delta_is_the_sensitivity_and_small_delta_is_delta() -> None:
    assert look_up("Δ").name == "sensitivity"
    assert look_up("δ").name == "delta"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("noise_multiplyer", "noise_multiplier"),
        ("sampel_rate", "sample_rate"),
        ("krumm", "krum"),
        ("epsilom", "epsilon"),
        ("atackers", "attackers"),
        ("signgard", "signguard"),
        ("trimed-mean", "trimmed mean"),
        ("brakedown point", "breakdown point"),
        ("findngs", "finding"),
        ("labelflips", "label flip"),
    ],
)
def test_a_misspelt_word_is_refused_with_the_nearest(word: str, meant: str) -> None:
    result = explain(word)
    assert result.exit_code == 2
    assert meant in result.stderr
    assert nearest(word)[0] == meant


@pytest.mark.parametrize("word", ["xyzzy", "💥", "", "a" * 10_000])
def test_an_unknown_word_is_refused_without_a_guess(word: str) -> None:
    result = explain("--", word)
    if not word:
        assert result.exit_code == 0  # nothing asked: the list
    else:
        assert result.exit_code == 2
        assert "lists them all" in result.stderr


# ------------------------------------------------------------------------------- the numbers in the texts


def exact(noise: float, rate: float, steps: int, delta: float = 1e-5, group: int = 1) -> float:
    event = PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise))
    grouped = Group(size=group, event=event) if group > 1 else event
    return ExactAccountant().compose(grouped, steps).epsilon(delta=delta).epsilon


def renyi(noise: float, rate: float, steps: int, delta: float = 1e-5) -> float:
    event = PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise))
    return RenyiAccountant().compose(event, steps).epsilon(delta=delta).epsilon


def gaussian(accountant: ExactAccountant | RenyiAccountant | ConcentratedAccountant) -> float:
    """Fifty Gaussian steps at z = 4."""
    return accountant.compose(Gaussian(noise_multiplier=4.0), 50).epsilon(delta=1e-5).epsilon


def optimal(epsilon: float) -> float:
    """A hundred releases of which only ε is known."""
    return ClassicalAccountant(rule="optimal").compose(PureDP(epsilon=epsilon), 100).epsilon(delta=1e-5).epsilon


def moments() -> float:
    event = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=1.0))
    return RenyiAccountant.moments_accountant().compose(event, 100).epsilon(delta=1e-5).epsilon


def noise_for(epsilon: float, delta: float, rate: float, steps: int) -> float:
    return calibrate_noise(target_epsilon=epsilon, target_delta=delta, sample_rate=rate, steps=steps)


CLAIMS = [
    ("noise_multiplier", "24.1", lambda: exact(0.5, 0.0032, 31_200)),
    ("noise_multiplier", "3.17", lambda: exact(1.0, 0.0032, 31_200)),
    ("noise_multiplier", "0.394", lambda: exact(5.0, 0.0032, 31_200)),
    ("noise_multiplier", "25.2", lambda: exact(1.0, 0.1, 1000)),
    ("noise_multiplier", "2.05", lambda: noise_for(8, 1e-5, 0.1, 1000)),
    ("noise_multiplier", "20.5", lambda: noise_for(0.1, 1e-6, 0.0032, 31_200)),
    ("epsilon", "14.4", lambda: exact(2.231, 0.0032, 31_200, group=10)),
    ("record", "3.41", lambda: exact(2.231, 0.0032, 31_200, group=3)),
    ("noise_multiplier_user", "9.67", lambda: exact(0.5, 0.8, 1)),
    ("noise_multiplier_user", "41.1", lambda: exact(0.5, 0.8, 10)),
    ("noise_multiplier_user", "15.1", lambda: exact(1.0, 0.8, 10)),
    ("noise_multiplier_user", "137", lambda: exact(0.5, 0.8, 10) / 0.3),
    ("max_grad_norm", "11.98", lambda: exact(0.6, 0.0032, 31_200)),
    ("max_grad_norm", "2.32", lambda: exact(1.2, 0.0032, 31_200)),
    ("sample_rate", "1.83", lambda: exact(1.0, 0.01, 1000)),
    ("sample_rate_user", "1.83", lambda: exact(1.0, 0.01, 1000)),
    ("steps", "1.68", lambda: exact(1.0, 0.1, 1)),
    ("steps", "7.05", lambda: exact(1.0, 0.1, 100)),
    ("steps", "3.58", lambda: exact(1.0, 0.1, 1000) / exact(1.0, 0.1, 100)),
    ("privacy_medium", "2.23", lambda: noise_for(1, 1e-5, 0.0032, 31_200)),
    ("performance", "0.607", lambda: noise_for(10, 1e-4, 0.0032, 31_200)),
    ("conversion", "8.60", lambda: gaussian(ExactAccountant())),
    ("conversion", "9.23", lambda: gaussian(RenyiAccountant())),
    ("moments accountant", "7.90", lambda: renyi(1.0, 0.1, 100)),
    ("moments accountant", "8.93", moments),
    ("noise_multiplier_user", "615", lambda: exact(0.1, 0.8, 10)),
    ("sample_rate_user", "0.38", lambda: exact(1.0, 0.01, 10)),
    ("zcdp", "9.23", lambda: gaussian(ConcentratedAccountant())),
    ("pure dp", "4.31", lambda: optimal(0.1)),
    ("advanced composition", "31.2", lambda: optimal(0.5)),
    ("advanced composition", "79.8", lambda: optimal(1.0)),
    ("advanced composition", "24.0", lambda: 0.5 * math.sqrt(200 * math.log(1e5))),
    ("gaussian dp", "3.71", lambda: exact(0.8, 0.01, 1000, delta=1e-6)),
    ("gaussian mechanism", "3.731", lambda: noise_for(1, 1e-5, 1.0, 1)),
    ("gaussian mechanism", "4.845", lambda: math.sqrt(2 * math.log(1.25e5))),
    ("noise_type", "316", lambda: math.sqrt(100_000)),
    ("randomized response", "2.20", lambda: math.log(9)),
    ("posterior odds", "99.97", lambda: 100 / (1 + math.exp(-8))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "claim", "truth"), CLAIMS, ids=[f"{name}: {claim}" for name, claim, _ in CLAIMS])
def test_a_number_in_a_text_is_what_the_accountants_say(name: str, claim: str, truth: object) -> None:
    term = look_up(name)
    texts = " ".join((term.meaning, term.effect, term.range, term.common_error))
    assert claim in texts
    assert callable(truth)
    digits = len(claim.partition(".")[2])
    assert abs(truth() - float(claim)) <= 0.51 * 10.0**-digits
