"""A model behind an address: FastAPI and a model folder.

    pip install fastapi uvicorn
    KERNELMILL_MODEL=homes-model uvicorn examples.serve:app

    curl localhost:8000/about
    curl -X POST localhost:8000/predict -H 'content-type: application/json' \\
        -d '{"rows": [{"size": 50, "city": "Rome"}]}'

Each worker holds the model; rows that come together are predicted together. A row that is far from
everything that was learned is answered all the same, and says so: novelty above 1.
"""

import os
from contextlib import asynccontextmanager
from typing import Any

import pandas as pd
import torch
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from kernelmill import KernelmillError, load

MOST_ROWS = 10_000  # of one request


class Rows(BaseModel):
    """Rows by their columns' names; what is null, or not there, is missing."""

    rows: list[dict[str, Any]] = Field(min_length=1, max_length=MOST_ROWS)


@asynccontextmanager
async def loaded(app: FastAPI):
    torch.set_num_threads(int(os.environ.get("KERNELMILL_THREADS", "1")))  # one for each worker
    if "KERNELMILL_MODEL" not in os.environ:
        raise RuntimeError("KERNELMILL_MODEL is not set; set it to the folder of a model.")
    app.state.model = load(os.environ["KERNELMILL_MODEL"])
    yield


app = FastAPI(title="kernelmill", lifespan=loaded)


@app.get("/about")
def about() -> dict[str, Any]:
    """Who made the model, of which data, and how good it was on rows it did not see."""
    return app.state.model.about()


@app.post("/predict")
def predict(given: Rows) -> dict[str, Any]:
    """Predictions, probabilities of classes, how new each row is, and columns that are not used."""
    model = app.state.model
    names = list(getattr(model, "feature_names_in_", given.rows[0]))
    frame = pd.DataFrame([{name: row.get(name) for name in names} for row in given.rows])
    try:
        answer = {
            "predictions": model.predict(frame).tolist(),
            "novelty": model.novelty(frame).round(3).tolist(),
            "not_used": sorted({name for row in given.rows for name in row} - set(names)),
        }
        if hasattr(model, "classes_"):
            answer["classes"] = [str(label) for label in model.classes_]
            answer["probabilities"] = model.predict_proba(frame).tolist()
    except KernelmillError as error:
        raise HTTPException(422, str(error)) from None
    return answer
