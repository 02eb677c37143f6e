# kernelmill on a CPU.
#     docker build --tag kernelmill .
#     docker run --rm --user "$(id -u)" --volume "$PWD:/data" kernelmill train homes.csv --target price --out homes
FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1

# The pinned versions of the tests, and torch's CPU build instead of the one with CUDA.
WORKDIR /opt/kernelmill
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN python -m pip install --constraint constraints.txt \
        --extra-index-url https://download.pytorch.org/whl/cpu '.[data]' \
    && useradd --create-home --uid 1000 kernelmill

USER 1000
WORKDIR /data
ENTRYPOINT ["kernelmill"]
CMD ["--help"]
