"""A site's policy: what may be asked of its data.

The file ``policy.toml`` lies at the site and is read there (:mod:`quietsum.party.policy_file`). It names the site's
dataset and its public size, the units that must be protected, with the largest ε of one run and of a lifetime, the
smallest noise and largest clip, and which tasks and ways of aggregation are allowed. A plan that breaks a single line
is refused before anything of it runs, in words that both sides log. Every field here is a key of the file, declared
once (:mod:`quietsum.keys`).

A policy that names units ``record`` and ``client`` wants both promised, by every plan: a plan that protects only one of
them would release data behind the back of the other book.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from quietsum.aggregation import RULES
from quietsum.alerts import AlertSettings as Alerts
from quietsum.analytics import TASK, choose_budget
from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.keys import FILLED, NON_NEGATIVE, OPEN_FRACTION, POSITIVE, WORDS, choices, key, no_key, table, whole
from quietsum.ledger import label
from quietsum.party.questions import SiteQuestions, is_question
from quietsum.plan import LAYERS, OFF, ON, Layer, Options, units
from quietsum.privacy import Budget, Neighbours, Observer, PrivacyUnit

if TYPE_CHECKING:
    from quietsum.plan import ResolvedPlan

__all__ = [
    "MODES",
    "AllowedTask",
    "CoordinatorAddress",
    "Policy",
    "Rules",
    "SiteData",
    "SiteDataset",
    "SiteName",
    "SiteQuestions",
    "UnitPolicy",
    "layers_of",
    "mode_of",
]

MODES = ("mean", "noisy-sum", "party-noise", "distributed-noise")
"""How updates may be combined. ``mean``: the server sees each update, protected by the noise that the site gave its
records. ``noisy-sum``: the server adds the noise that protects whole clients, and is trusted to. ``party-noise``: the
site adds that noise itself. ``distributed-noise``: it adds a share of the noise, of records or clients, to its part of
a masked sum; the other sites' shares are the rest of its protection."""
LARGEST_MESSAGE = 256 * 2**20


@final
@table
class SiteName:
    """Who this site is."""

    name: str = key("The site's name in plans.", bound=FILLED)
    ledger: str = key("The file of the site's own ledger, beside this file.", default="ledger.db")

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", label("name", self.name))
        if not self.ledger.strip():
            raise InvalidParameter("ledger", self.ledger, "names no file", "ledger.db, say")


@final
@table
class CoordinatorAddress:
    """Where the coordinator is, and how this site proves who it is."""

    address: str = key('Host and port of its SuperLink, "server.example.org:9092".')
    root_certificate: str = key("The certificate that its own is signed with, a PEM file.", default="")
    node_key: str = key("This site's private key, which the coordinator has registered.", default="")
    ledger: str = key("The name of the coordinator's ledger; if omitted, the first one counts.", default="")

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        written = 'write "server.example.org:9092"'
        if "://" in self.address:
            raise InvalidParameter("address", self.address, "is a URL", f"{written}: host:port, without https://")
        number = int(port) if port.isascii() and port.isdecimal() and len(port) <= 5 else 0
        if not host or set(host) & set(" \t\r\n/@?#") or not 0 < number < 65536:
            raise InvalidParameter("address", self.address, "is no host with a port", written)
        if self.ledger and (len(self.ledger) != 32 or not set(self.ledger) <= set("0123456789abcdef")):
            raise InvalidParameter("ledger", self.ledger, "is no ledger's name", "copy it from quietsum ledger show")


@final
@table
class SiteDataset:
    """The data, by the name that the site declares, and its public size.

    An empty ``public`` means protected data, which needs a budget for at least one unit.
    """

    name: str = key("The dataset's declared name; budgets are kept under it.", bound=FILLED)
    size: int = key("Its declared size, which is public.", bound=whole(1))
    public: str = key("Why no one in it needs protection; leave it out for protected data.", default="")
    same_rows: str = key("Why rows that are known here under another name have a budget of their own.", default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", label("name", self.name))
        object.__setattr__(self, "public", self.public.strip())


@final
@table
class SiteData:
    """What the site's table should hold, and what follows if it does not (:mod:`quietsum.party.data`)."""

    schema: str = key("A data.toml, beside this file.", bound=FILLED)
    table: str = key("The file that is checked; if omitted, the rows that the task shows.", default="")
    on_failure: str = key(
        "Rows that do not fit: noise alone leaves, they are left out one by one (drop), the site does not start, or "
        "they are trained on (warn).", default="noise", bound=choices("noise", "drop", "refuse", "warn"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not self.schema.strip():
            raise InvalidParameter("schema", self.schema, "names no file", "data.toml, say")
        if self.on_failure == "drop" and self.table:
            problem = "leaves out rows that the task shows, and a table is checked instead"
            raise InvalidParameter("on_failure", self.on_failure, problem, "leave table out, or say noise")


@final
@table
class UnitPolicy:
    """What one unit may cost over all runs (``epsilon`` at ``delta``), and in one (``run``), and by which noise."""

    epsilon: float = key("The largest ε of all runs together.", bound=POSITIVE)
    delta: float = key("The δ that belongs to it; for records and people below 1/size.", bound=OPEN_FRACTION)
    run: float | None = key(
        "The largest ε of one run, at most epsilon; that of all runs if omitted.", default=None, bound=POSITIVE
    )
    smallest_noise: float = key("The smallest noise multiplier.", default=0.0, bound=NON_NEGATIVE)
    largest_clip: float | None = key("The largest clip.", default=None, bound=POSITIVE)
    neighbours: tuple[Neighbours, ...] = key(
        "How a plan may compare datasets, a word or a list; the same noise has another ε by each.",
        default=tuple(Neighbours), bound=WORDS,
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not self.neighbours:
            known = ", ".join(one.value for one in Neighbours)
            raise InvalidParameter("neighbours", "[]", "allows no plan", f"choose among {known}")
        object.__setattr__(self, "neighbours", tuple(dict.fromkeys(self.neighbours)))
        if self.run is not None and self.run > self.epsilon:
            raise InvalidParameter(
                "run", self.run, f"is more than epsilon = {self.epsilon:g}, which is for all runs together: one run "
                "could never spend it", "lower run, or leave it out",
            )  # fmt: skip

    def lifetime(self, unit: PrivacyUnit) -> Budget:
        """The budget of all runs together."""
        return Budget(epsilon=self.epsilon, delta=self.delta, unit=unit)

    @property
    def of_a_run(self) -> float:
        """The largest ε of one run."""
        return self.epsilon if self.run is None else self.run


@final
@table
class AllowedTask:
    """A task that may run here."""

    name: str = key('A task\'s name, or "my_module:MyTask".', bound=FILLED)
    options: Mapping[str, Any] = key("The options that the plan must state.", default_factory=dict)
    here: Mapping[str, Any] = key("Options that this site adds, paths for instance.", default_factory=dict)


@final
@table
class Rules:
    """Aggregation and trust.

    With ``trust_server_sampling`` a client's charge is amplified by the server's draw of parties, which the site cannot
    see; without it, the charge is the plan's as if the site were asked in every round.

    ``secure`` = "required" refuses every plan in which the server would see this site's own update. The next three bind
    every plan with secure aggregation: this site helps to unmask no sum of fewer than ``smallest_cohort`` sites, none
    with a threshold below ``smallest_threshold``, and with ``adversary`` = "semi-malicious" none by parameters that do
    not hold against a server that lies about drop-outs. A site that ``peers`` names must have the ledger that stands
    there; any other is known by the first ledger that a run shows of it.

    ``lost_sessions`` bounds the sessions with random groups, over the dataset's life, beyond two for each attempt that
    was charged and two for the one at hand (:meth:`quietsum.party.books.SiteBooks.draw`): each is three more tries to
    seat this site among colluders.

    What a site sends is protected by its own noise under every ``rule``; but a site may ask for a rule that does not
    believe every update, or refuse rules that it does not know.
    """

    aggregation: tuple[str, ...] = key(
        "Ways of aggregation that are allowed.", default=("mean",), bound=choices(*MODES)
    )
    trust_server_sampling: bool = key(
        "Whether the server's draw of parties makes a client's charge smaller.", default=False
    )
    secure: str = key(
        "Whether the server may see this site's own update, or masked sums alone.", default="allowed",
        bound=choices("allowed", "required"),
    )  # fmt: skip
    smallest_cohort: int = key(
        "Secure aggregation: this site helps to unmask no sum of fewer sites.", default=0, bound=whole(0)
    )
    smallest_threshold: int = key(
        "Secure aggregation: the smallest number of sites whose shares unmask a sum.", default=0, bound=whole(0)
    )
    adversary: str = key(
        "Secure aggregation: the kind of server that a plan must hold against.", default="curious",
        bound=choices("curious", "semi-malicious"),
    )  # fmt: skip
    peers: Mapping[str, str] = key(
        "Secure aggregation: names of other sites' ledgers, by site; if omitted, a run's first one counts.",
        default_factory=dict,
    )
    largest_message: int = key("Messages of more bytes are not read.", default=LARGEST_MESSAGE, bound=whole(1024))
    most_canaries: int = key(
        "So many made-up records may a plan send through this site's steps, for an audit that the site makes itself; 0 "
        "refuses such plans.", default=1000, bound=whole(0),
    )  # fmt: skip
    rule: tuple[str, ...] = key(
        "Rules of aggregation that a plan may use, a word or a list; any if omitted.", default=(), bound=WORDS
    )
    lost_sessions: int | None = key(
        "Random groups: sessions over the dataset's life beyond two for each charged attempt and two for the one at "
        "hand; those of the plan's other attempts if omitted.", default=None, bound=whole(0),
    )  # fmt: skip

    def __post_init__(self) -> None:
        for word in self.rule:
            if word != "mean" and word not in RULES:
                raise InvalidParameter("rule", word, "is unknown", f"choose among mean, {', '.join(RULES)}")
        object.__setattr__(self, "rule", tuple(dict.fromkeys(self.rule)))
        for party, ledger in self.peers.items():
            if not isinstance(ledger, str) or len(ledger) != 32 or not set(ledger) <= set("0123456789abcdef"):
                problem = "is no ledger's name"
                raise InvalidParameter(f"peers.{party}", ledger, problem, "copy it from quietsum ledger show there")

    def to_dict(self) -> dict[str, Any]:
        """What is asked of secure aggregation and of rules, as plain values."""
        names = ("secure", "smallest_cohort", "smallest_threshold", "adversary")
        return {**{name: getattr(self, name) for name in names}, "rule": list(self.rule)}

    @property
    def demands(self) -> str:
        """What is asked of secure aggregation, in words."""
        seen = "masked sums alone" if self.secure == "required" else "this site's updates, or masked sums"
        asked = [f"of {self.smallest_cohort} sites or more"] if self.smallest_cohort else []
        asked += [f"with a threshold of {self.smallest_threshold} or more"] if self.smallest_threshold else []
        asked += ["also against a server that lies about drop-outs"] if self.adversary == "semi-malicious" else []
        return f"the server sees {' '.join([seen, ', '.join(asked)]).strip()}"

    @property
    def accepted(self) -> str:
        """Which rules may combine updates, in words."""
        return f"updates are combined by {' or '.join(self.rule)}" if self.rule else "updates are combined by any rule"


@final
@table
class Policy:
    """A site's policy. ``folder`` is where relative paths begin."""

    site: SiteName = key("Who this site is.")
    coordinator: CoordinatorAddress = key("Where the coordinator is.")
    dataset: SiteDataset = key("The data.")
    tasks: tuple[AllowedTask, ...] = key("What may be learned from it.", default=())
    rules: Rules = key("Aggregation and trust.", default_factory=Rules)
    record: UnitPolicy | None = key("What a record may cost.", default=None)
    person: UnitPolicy | None = key("What a person may cost.", default=None)
    client: UnitPolicy | None = key("What this site as a whole may cost.", default=None)
    data: SiteData | None = key("What the site's table should hold.", default=None)
    questions: SiteQuestions | None = key("What may be asked of its table.", default=None)
    alerts: Alerts = key(
        "Whom to tell, by the keys of alerts.toml; all of it is the site operator's alone.", default_factory=Alerts,
        free=True,
    )  # fmt: skip
    folder: Path = no_key(default_factory=Path)

    def __post_init__(self) -> None:
        if not isinstance(self.alerts, Alerts):  # a table of the file, which is read by the rules of alerts.toml
            object.__setattr__(self, "alerts", Alerts.from_dict(self.alerts, where="[alerts]", site=True))
        if not self.tasks and self.questions is None:
            remedy = 'name a task: [[tasks]] name = "heart", or say under [questions] what may be asked'
            raise InvalidParameter("tasks", "[]", "allows nothing", remedy)
        if any(allowed.name == TASK for allowed in self.tasks):
            raise InvalidParameter("tasks", TASK, "is no training", "say under [questions] what may be asked")
        self._check_questions()
        if not self.budgets and not self.dataset.public:
            raise InvalidParameter(
                "dataset", self.dataset.name, "is protected and has no budget",
                "add [record] with epsilon and delta, or say in dataset.public why no one in it needs protection",
            )  # fmt: skip
        if self.budgets and self.dataset.public:
            raise InvalidParameter(
                "dataset.public", self.dataset.public, "stands beside a budget",
                "data is protected or it is not: remove one of the two",
            )  # fmt: skip
        for unit in (PrivacyUnit.RECORD, PrivacyUnit.PERSON):
            if unit in self.budgets:
                self._check_delta(unit, self.budgets[unit].delta)
        wanted = [set(one.neighbours) for one in self.budgets.values()]
        if wanted and not set.intersection(*wanted):
            raise InvalidParameter(
                f"{next(iter(self.budgets))}.neighbours", " or ".join(next(iter(self.budgets.values())).neighbours),
                "has none in common with another unit's, and a plan has one relation for all its units",
                "allow the same one for each unit",
            )  # fmt: skip

    def _check_questions(self) -> None:
        """Questions promise something to records, within the same lifetime as trainings."""
        if self.questions is None or self.dataset.public:
            return
        if self.record is None or self.client is not None:
            problem = "stands without [record], or beside [client]: a question promises something to records and people"
            raise InvalidParameter(
                "questions", self.questions.table, problem, "give records a budget, and people maybe"
            )
        if self.questions.day > self.record.epsilon:
            raise InvalidParameter(
                "questions.day", self.questions.day, f"is more than record.epsilon = {self.record.epsilon:g}, which is "
                "for everything together", "lower it",
            )  # fmt: skip

    def _check_delta(self, unit: PrivacyUnit, delta: float) -> None:
        """The house's own rule for plans; per client it needs the number of clients, which only a plan states."""
        from quietsum.plan import REFUSALS

        if delta * self.dataset.size >= 1:
            rule = next(row for row in REFUSALS if row.name == "delta-too-large")
            problem = f"is not below 1/n for n = {self.dataset.size:,} records: {rule.why}"
            raise InvalidParameter(f"{unit}.delta", delta, problem, rule.instead)

    @property
    def name(self) -> str:
        """The site's name in plans."""
        return self.site.name

    @property
    def budgets(self) -> dict[PrivacyUnit, UnitPolicy]:
        """What is protected, by unit."""
        found = {PrivacyUnit.RECORD: self.record, PrivacyUnit.PERSON: self.person, PrivacyUnit.CLIENT: self.client}
        return {unit: one for unit, one in found.items() if one is not None}

    def observers(self, unit: PrivacyUnit) -> tuple[Observer, ...]:
        """Against whom ``unit`` is protected by every plan that the rules allow: the server's noise hides nothing from
        the server."""
        trusting = unit is PrivacyUnit.CLIENT and "noisy-sum" in self.rules.aggregation
        return (Observer.RECIPIENTS,) if trusting else tuple(Observer)

    def path(self, name: str) -> Path:
        """A path of the file, seen from where the file lies."""
        return self.folder / name

    # ------------------------------------------------------------------------------------------- the answer

    def task(self, name: str, options: Mapping[str, Any]) -> AllowedTask:
        """The allowed task, or :class:`~quietsum.errors.PlanRefused`."""
        if name == TASK:
            return self._asking(options)
        for allowed in self.tasks:
            if allowed.name == name and Options(allowed.options) == Options(options):
                return allowed
        known = " with these options" if any(allowed.name == name for allowed in self.tasks) else ""
        raise PlanRefused(f"the policy of {self.name} does not allow task {name!r}{known}")

    def _asking(self, options: Mapping[str, Any]) -> AllowedTask:
        """Questions as a task, with this site's own table."""
        asked = self.questions
        if asked is None:
            raise PlanRefused(f"the policy of {self.name} answers no questions")
        if problems := list(asked.problems(options)):
            raise PlanRefused("; ".join(problems))
        return AllowedTask(name=TASK, options=options, here={"tables": {self.name: str(self.path(asked.table))}})

    def check(self, resolved: ResolvedPlan) -> None:
        """Raise :class:`~quietsum.errors.PlanRefused` with every line of the policy that ``resolved`` breaks.

        What the plan costs is not believed here but computed, by the site's own ledger.
        """
        problems = list(self._problems(resolved))
        if problems:
            raise PlanRefused(f"the policy of {self.name} refuses: " + "; ".join(problems))

    def _problems(self, resolved: ResolvedPlan) -> Iterator[str]:
        plan, rules = resolved.plan, self.rules
        try:
            self.task(plan.task.name, plan.task.options)
        except PlanRefused as refusal:
            yield str(refusal)
        if plan.attack is not None:
            yield "the plan is a drill ([attack]), and a drill uses no site's data"
        facts = next((facts for facts in resolved.parties if facts.name == self.name), None)
        if facts is None:
            yield "the plan does not name this site"
            return
        if facts.dataset != self.dataset.name:
            yield f"its dataset is {self.dataset.name!r}, the plan says {facts.dataset!r}"
        if facts.size != self.dataset.size:
            yield f"its public size is {self.dataset.size}, the plan says {facts.size}"
        if facts.account != facts.name:
            yield "the plan deals out the data of one holder, and a site's books are its own"
        yield from self._about_masks(resolved)
        limit = choose_budget(resolved) if is_question(resolved) and resolved.limits else None
        if self.questions is not None and limit is not None and limit.epsilon > self.questions.epsilon:
            most, unit = self.questions.epsilon, limit.unit
            yield f"ε = {limit.epsilon:g} per {unit} is more than ε = {most:g} per {unit} for a file of questions"
        if self.questions is not None and is_question(resolved) and plan.privacy.person is not None:
            yield from self.questions.about_people(plan.privacy.person.id)
        if rules.rule and plan.aggregation.rule not in rules.rule:
            yield f"aggregation.rule = {plan.aggregation.rule!r} is not accepted, only {' or '.join(rules.rule)}"
        if (mode := mode_of(resolved)) not in rules.aggregation:
            yield f"aggregation by {mode!r} is not allowed, only by {', '.join(rules.aggregation) or 'nothing'}"
        if plan.training.canaries > rules.most_canaries:
            yield f"training.canaries = {plan.training.canaries} is more than {rules.most_canaries}"
        if plan.privacy.noise != "secure" and resolved.protected:
            yield f"privacy.noise = {plan.privacy.noise!r} is not floating-point safe"
        yield from self._promises(resolved)

    def _about_masks(self, resolved: ResolvedPlan) -> Iterator[str]:
        """What the plan's masked sums lack."""
        rules, secure = self.rules, resolved.secure
        if secure is None:
            if rules.secure == "required":
                yield "the server would see this site's own update, and secure aggregation is required"
            return
        if secure.floor < rules.smallest_cohort:
            yield f"sums of {secure.floor} sites would be unmasked, and the policy wants {rules.smallest_cohort}"
        if secure.parameters.threshold < rules.smallest_threshold:
            found = secure.parameters.threshold
            yield f"threshold {found} of secure aggregation is below {rules.smallest_threshold}"
        if rules.adversary == "semi-malicious" and secure.parameters.adversary != "semi-malicious":
            yield "the plan trusts the server to follow the protocol, the policy wants adversary = 'semi-malicious'"

    def _promises(self, resolved: ResolvedPlan) -> Iterator[str]:
        if not resolved.protected:
            if not self.dataset.public:
                yield "the plan promises nothing"
            return
        promised = units(resolved)
        for unit, budget in self.budgets.items():
            if unit not in promised:
                yield f"the plan promises nothing per {unit}"
                continue
            yield from self._about(resolved, unit, budget)
        for unit in promised:
            if unit not in self.budgets and not self.dataset.public:
                yield f"the policy has no budget per {unit}"

    def _about(self, resolved: ResolvedPlan, unit: PrivacyUnit, budget: UnitPolicy) -> Iterator[str]:
        limit = resolved.limit_of(unit)
        if limit is None:
            yield f"the plan states no ε per {unit}"
            return
        if limit.epsilon > budget.of_a_run:
            yield f"ε = {limit.epsilon:g} per {unit} is more than ε = {budget.of_a_run:g} per {unit} for one run"
        if limit.delta > budget.delta:
            yield f"δ = {limit.delta:g} per {unit} is more than {budget.delta:g}"
        plan = resolved.plan
        if (relation := plan.privacy.neighbours) not in budget.neighbours:
            wanted = " or ".join(budget.neighbours)
            yield f"the plan protects by {relation} per {unit}, the policy wants {wanted}"
        stages = plan.schedule  # they add up to the plan's rounds, or the plan is refused
        least, widest = min([s.noise for s in stages] or [1.0]), max([s.clip for s in stages] or [1.0])
        mechanism, noise = resolved.mechanism_of(unit, least, widest), resolved.noise_of(unit, least, widest)
        if mechanism is None or noise is None:
            yield f"the plan adds no noise per {unit}"
            return
        if noise < budget.smallest_noise:
            yield f"noise multiplier {noise:.6g} per {unit} is below {budget.smallest_noise:g}"
        if budget.largest_clip is not None and mechanism.max_norm > budget.largest_clip:
            yield f"the clip {mechanism.max_norm:g} per {unit} is above {budget.largest_clip:g}"
        if budget.largest_clip is not None and unit is PrivacyUnit.CLIENT and resolved.adaptive is not None:
            yield f"the clip per {unit} adapts, and the policy bounds it by {budget.largest_clip:g}"


def mode_of(resolved: ResolvedPlan) -> str:
    """How the plan combines updates, in the words of a policy."""
    if resolved.distributed_unit is not None:
        return "distributed-noise"
    if not resolved.client_level:
        return "mean"
    return "party-noise" if resolved.noise_at_party else "noisy-sum"


def layers_of(policy: Policy) -> tuple[Layer, ...]:
    """The five layers of defence as far as they are this site's: on where its policy asks for them in every plan."""
    rules, data = policy.rules, policy.data
    noise = " and ".join(str(unit) for unit in policy.budgets)
    robust = bool(rules.rule) and "mean" not in rules.rule
    return (
        Layer(
            name=LAYERS[0], state=ON if data is not None else OFF, setting='[data] schema = "data.toml"',
            text="rows are held to their schema before they train" if data else "no schema holds the rows",
        ),
        Layer(
            name=LAYERS[1], state=ON if noise else OFF, setting="[record] with epsilon and delta",
            text=f"every plan must protect each {noise}" if noise else "the data is declared public",
        ),
        Layer(
            name=LAYERS[2], state=ON if rules.secure == "required" else OFF, setting='rules.secure = "required"',
            text=rules.demands,
        ),
        Layer(
            name=LAYERS[3], state=ON if robust else OFF, setting='rules.rule = "signguard", or a list without "mean"',
            text=rules.accepted,
        ),
        Layer(
            name=LAYERS[4], state=ON, setting="[alerts]",
            text="this site's own alerts go to its log and to alerts.log beside its ledger",
        ),
    )  # fmt: skip
