# One image for the operator and for both processes of a node. docs/image.md says what is in it, how large it is, and how to
# build it where packages come from a mirror.
#
#   docker build -t queryable-topics .
#
# Nothing is fetched or made when a container runs. What changes rarely lies below what changes often: Debian and Java,
# Python's packages, Spark's connector, Java's class archive, the project.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS base
# Java's package makes links beside manuals, for which a slim Debian has no directory.
RUN mkdir -p /usr/share/man/man1 \
 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/apt /var/log/*.log \
 && groupadd --gid 10001 qt \
 && useradd --uid 10001 --gid qt --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin qt
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    QT_CACHE_DIR=/opt/queryable-topics/cache


FROM base AS dependencies
COPY requirements-image.lock /build/
# No package is compiled: there is no compiler here. Of pyspark, which is Python and jars, no wheel is published.
RUN python -m venv --without-pip /opt/venv \
 && /usr/local/bin/python -m pip --python /opt/venv/bin/python install --no-cache-dir --only-binary :all: \
    --no-binary pyspark --require-hashes -r /build/requirements-image.lock
# Of Spark nodes run SQL's streaming from Kafka in one process: none of its other libraries, clusters, servers and shells.
# An image keeps whole seconds, and the class archive is taken only where the jars' times are what they were.
RUN cd /opt/venv/lib/python3*/site-packages/pyspark \
 && rm -r examples data \
 && cd jars \
 && rm -rf \
    # machine learning and graphs
    algebra_* arpack* blas-* breeze* cats-kernel* JTransforms* lapack* pmml-* spark-graphx* spark-mllib* spire* \
    # Hive, its metastore and its server, but not what ORC takes of it
    datanucleus* derby* hive-[!s]* hive-se* hive-sh* HikariCP* javax.jdo* jdo-api* spark-hive* \
    # clusters
    curator-* hadoop-yarn* kubernetes-* spark-kubernetes* spark-yarn* vertx-* zookeeper* volcano-* \
    # servers and shells
    connect-repl jline* scala-compiler* spark-connect* spark-pipelines* spark-repl* \
    # a store for aggregates in Spark, which views do not have
    rocksdbjni* \
    # other machines than those that the image is for
    netty-*-osx-* netty-*-windows-* \
 && touch --date=@1577836800 *.jar


FROM dependencies AS connector
COPY app/queryable_app/__init__.py /build/queryable_app/
COPY app/queryable_app/platform/__init__.py app/queryable_app/platform/file_lock.py app/queryable_app/platform/jars.py \
     app/queryable_app/platform/jars.sha256 /build/queryable_app/platform/
RUN --mount=type=secret,id=ivy-settings --mount=type=secret,id=java-cacerts \
    cd /build \
 && if [ -e /run/secrets/ivy-settings ]; then export QT_IVY_SETTINGS=/run/secrets/ivy-settings; fi \
 && if [ -e /run/secrets/java-cacerts ]; then \
      export JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=/run/secrets/java-cacerts; fi \
 && python -c "from queryable_app.platform import jars; jars.ingest_jars(jars.cache_dir('$QT_CACHE_DIR'))" \
 && rm -rf "$QT_CACHE_DIR/ivy" "$QT_CACHE_DIR"/.*.lock \
 && touch --date=@1577836800 "$QT_CACHE_DIR"/*/*.jar


FROM connector AS prepared
COPY app/queryable_app /build/queryable_app
RUN cd /build \
 && python -m queryable_app.ingest.prepare \
 && mkdir /prepared \
 && mv "$QT_CACHE_DIR"/classes-*.jsa "$QT_CACHE_DIR"/row-writer-*.jar /prepared/


# The compiler of hatch_build.py. Python's headers are for an image whose Python is Debian's.
FROM dependencies AS compiler
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends gcc libc6-dev libpython3-dev


FROM compiler AS project
COPY . /build/
RUN cd /build \
 && QT_COMPILE=always /usr/local/bin/python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
 && /usr/local/bin/python -m pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --no-index \
    --prefix /project /wheels/*.whl


FROM base
LABEL org.opencontainers.image.title="Queryable Topics" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.description="Turns a Kafka topic into a distributed, queryable key-value store" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.documentation="docs/image.md"
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=connector /opt/queryable-topics /opt/queryable-topics
COPY --from=prepared /prepared /opt/queryable-topics/cache
COPY --from=project /project /opt/venv
USER 10001:10001
WORKDIR /
CMD ["qtopic", "--help"]
