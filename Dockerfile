# A worker of the order example, and with another entrypoint the provider that it asks: see docker-compose.yml. An image
# of your own installs streams-engine[kafka] and your app, runs as somebody who is not root, and ends in
# ENTRYPOINT ["streams"] and CMD ["worker", "shop.orders:app"].

FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY streams streams
COPY schemas schemas
COPY examples examples
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
COPY --from=build /wheels /wheels
# The home is also where the provider keeps its database: a new volume takes its owner from there.
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[kafka,postgres,speed]" \
    && useradd --system --uid 10001 --home-dir /data --create-home streams
ENV PYTHONUNBUFFERED=1
USER 10001
WORKDIR /data
# In this form the worker is the first process and gets the SIGTERM of `docker stop` itself.
ENTRYPOINT ["streams"]
CMD ["worker", "streams._examples.order:app"]
