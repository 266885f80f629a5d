"""What stands as an example in the help of commands: of each group of options, and whole lines at the end."""

from __future__ import annotations

_SHARED = {
    "Model": "my_project.py:MyNet last.pt --model-args width=64",
    "Data": "--data my_project.py:train_data --samples 2000",
    "What is measured": "--measures default,aceht --loss mean_squared_error",
    "How precisely": "--seconds 60 --dtype float64",
    "Speed and memory": "--device cuda --batch-size 256",
    "Output": "--html page.html --json result.json",
}
# By command and group.
GROUP_EXAMPLES = {
    "measure": {
        **_SHARED,
        "Speed and memory": "--device cuda --workers 4",
        "Output": "--layers --html page.html --per-sample samples.csv",
    },
    "compare": {**_SHARED, "Model": "my_project.py:MyNet sgd.pt sam.pt", "Data": "--data mnist --test mnist:test"},
    "audit": {**_SHARED, "What is measured": "--measures hessian_trace,rho_sum --strengths usual"},
    "spectrum": {
        **_SHARED,
        "What is measured": "--operator ggn --loss mean_squared_error",
        "How precisely": "--probes 16 --steps 120",
        "Speed and memory": "--strategy looped --no-keep-graphs",
        "Output": "--figure spectrum.png --json spectrum.json",
    },
    "report": {
        "Networks": "runs/*/*.json --runs runs.csv",
        "Output": "--html page.html --figures figures/",
    },
    "demo": {"Training": "--steps 2000 --seed 1", "Output": "--folder first-look --quiet"},
    "get": {"Data": "mnist --data-root data/"},
    "run": {
        "Studies": "margins-fig1 --size small",
        "Where it is computed": "--engine processes --workers 4",
        "Output": "--out my-runs",
    },
    "show": {"Studies": "'margins-*' --size small", "Output": "--html studies.html"},
    "export": {"Studies": "--all --size small", "Output": "--csv rows.csv"},
}
# By the words that call a command: what an example does, and the line.
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "measure": (
        (
            "a checkpoint of your own",
            "spiritlevel measure my_project.py:MyNet last.pt \\\n    --data my_project.py:train_data",
        ),
        (
            "a row a checkpoint, and a page of all",
            "spiritlevel measure my_project.py:MyNet runs/*.pt \\\n    --data mnist --data-root data --html page.html",
        ),
        (
            "a language model on text, the best answer within a minute",
            "spiritlevel measure hf:my-gpt --task causal-lm --data text.txt \\\n    --seconds 60",
        ),
    ),
    "compare": (
        (
            "which of two is flatter, and does that survive rescaling?",
            "spiritlevel compare my_project.py:MyNet sgd.pt sam.pt \\\n"
            "    --data my_project.py:train_data --html page.html",
        ),
        ("reports that were saved before; nothing is measured again", "spiritlevel compare sgd.json sam.json"),
        (
            "two runs of several epochs, with test accuracies",
            "spiritlevel compare my_project.py:MyNet run-*/epoch-*.pt \\\n    --data mnist --test mnist:test",
        ),
    ),
    "audit": (
        (
            "every default measure under every symmetry of the network",
            "spiritlevel audit my_project.py:MyNet last.pt --data my_project.py:train_data",
        ),
        (
            "two measures, one strength, no sweep over the outputs' scale",
            "spiritlevel audit my_project.py:MyNet last.pt --data digits \\\n"
            "    -m hessian_trace,rho_sum --strengths usual --alphas none",
        ),
    ),
    "spectrum": (
        (
            "eigenvalues with residuals, and the density as an image",
            "spiritlevel spectrum my_project.py:MyNet last.pt \\\n"
            "    --data my_project.py:train_data --figure spectrum.png",
        ),
        (
            "the Gauss–Newton matrix, with the line 2/lr on the page",
            "spiritlevel spectrum my_project.py:MyNet last.pt --data digits \\\n"
            "    --operator ggn --lr 0.1 --html page.html",
        ),
    ),
    "report": (
        ("a saved report again, with its layers", "spiritlevel report result.json --layers"),
        ("a page of many runs", "spiritlevel report runs/*/*.json --runs runs.csv --html page.html"),
        (
            "all values as one table, and figures for a paper",
            "spiritlevel report *.json --csv all.csv --figures figures/",
        ),
    ),
    "list": (
        ("all measures", "spiritlevel list measures"),
        ("formula, source, cost and settings of one", "spiritlevel list measures relative_flatness"),
        ("what can stand as MODEL and --data", "spiritlevel list nets; spiritlevel list data"),
    ),
    "doctor": (
        ("versions, extras, and whether this machine's arithmetic is right", "spiritlevel doctor"),
        ("what a bug report needs", "spiritlevel doctor > doctor.txt"),
    ),
    "demo": (
        ("two networks trained, compared, and a page", "spiritlevel demo"),
        ("the same in a few seconds, from another seed", "spiritlevel demo --steps 1000 --seed 1 --folder quick"),
    ),
    "data get": (
        ("into the cache", "spiritlevel data get mnist"),
        ("into a folder of your own", "spiritlevel data get cifar10 --data-root data/"),
    ),
    "study run": (
        ("one study as small as it goes", "spiritlevel study run nfm-a1"),
        ("several, on four processes", "spiritlevel study run 'margins-*' --engine processes --workers 4"),
    ),
    "study show": (
        ("what finished runs say", "spiritlevel study show nfm-a1"),
        ("all of them on one page", "spiritlevel study show --all --html studies.html"),
    ),
    "study export": (
        ("all rows for a notebook", "spiritlevel study export --all --csv rows.csv"),
        ("the documents made from them", "spiritlevel study export --all --docs docs/results"),
    ),
}
