"""What jax-privacy's auditor says of canary scores: three lower bounds on ε for each run, as JSON.

    python jax_auditing.py scores.json

Needs jax-privacy alone. The file holds δ, a confidence, and for each run the scores of canaries that were in and of
those that were not. All thresholds are tried, with its own correction for that (Bonferroni).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from jax_privacy import auditing  # type: ignore[import-not-found,unused-ignore]


def main() -> None:
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    level, delta = 1 - told["confidence"], told["delta"]
    found = []
    for run in told["runs"]:
        auditor = auditing.CanaryScoreAuditor(np.array(run["inside"]), np.array(run["outside"]))
        found.append({
            "one_run": float(auditor.epsilon_one_run(level, delta)),
            "fdp": float(auditor.epsilon_one_run_fdp(level, delta)),
            "clopper_pearson": float(auditor.epsilon_clopper_pearson(level, delta)),
        })  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
