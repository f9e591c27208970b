"""Compare mathematical answers in a worker process, ``python -m specbench.evals.grading.math_judge``.

math-verify limits its time by SIGALRM, which works only in the main thread of a process and which sympy can delay for
minutes. So no limit is set here: the parent kills a worker that takes too long.
"""

from __future__ import annotations

from collections.abc import Callable

from specbench.evals.grading.workers import Job, serve


def prepare() -> Callable[[Job], Job]:
    """Import the libraries once, and return the function that answers a job.

    ``{"gold", "box"}``: whether the answer in the box is the reference; ``{"gold", "text", "bare"}``: whether a text
    without a box states it in words ("the final answer is …"), or else in a box without braces. Both return
    ``{"passed", "by", "equal"}``: which library decided, and whether the two are equal as strings; the second also
    "rule": how the answer was found. ``{"solution", "text"}``: lm-eval's own two metrics.
    """
    from lm_eval.tasks.hendrycks_math import utils as hendrycks
    from lm_eval.tasks.minerva_math import utils as minerva
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    # Without a box only an announced answer counts, not the last number of a text that was cut off.
    announced = [
        LatexExtractionConfig(try_extract_without_anchor=False),
        ExprExtractionConfig(try_extract_without_anchor=False),
    ]

    def decide(job: Job) -> Job:
        found: Job = {}
        equal = "box" in job and hendrycks.is_equiv(job["box"], job["gold"])
        # Its normaliser drops all after "\text{ " as a unit: "9 \text{ or } 10" would be 9, so math-verify decides.
        if equal and "\\text{ " not in job["box"]:
            return {"passed": True, "by": "equal strings", "equal": True}
        if "box" in job:
            answer = parse(f"${job['box']}$", parsing_timeout=None)
        else:
            answer, found["rule"] = parse(job["text"], announced, parsing_timeout=None), "announced in words"
            if not answer and job.get("bare"):
                answer, found["rule"] = parse(f"${job['bare']}$", parsing_timeout=None), "box without braces"
        gold = parse(f"${job['gold']}$", parsing_timeout=None)
        return {"passed": verify(gold, answer, timeout_seconds=None), "by": "math-verify", "equal": equal, **found}

    def lm_eval(job: Job) -> Job:
        answer = minerva.remove_boxed(minerva.last_boxed_only_string(job["solution"]))
        doc = {"solution": job["solution"], "answer": minerva.normalize_final_answer(answer)}
        return dict(minerva.process_results(doc, [job["text"]]))

    decide({"gold": "\\frac{1}{2}", "box": "0.5"})  # the grammars load on first use: do that before the first job
    lm_eval({"solution": "$\\boxed{1}$", "text": "The final answer is $2$."})
    return lambda job: lm_eval(job) if "solution" in job else decide(job)


if __name__ == "__main__":
    serve(prepare)
