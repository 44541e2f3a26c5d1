# `make run` and `make demo` serve demos, `make test` runs every test; both set up all they need on a fresh Debian.

PYTHON ?= python3
PORT ?= 8080
OPS_PORT ?= 9464
SHOP_PORT ?= 8090
# Of `make demo-traffic`: events a second, and how long; until Ctrl-C unless given.
RATE ?= 20
SECONDS ?=
# Of `make dist`: the optional libraries in the wheelhouse and in the Debian package. `parquet` would add 170 MB.
EXTRAS ?= bots,kafka,nats,postgres
BIN := .venv/bin
SDKS := tests/sdks
KAFKA := tests/kafka
ICEBERG := tests/iceberg
AZURITE := tests/azurite
SETUP := setup.cfg pyproject.toml
TESTS := $(shell find ingestd plugins testing tests -name '*.py' -not -path '*/node_modules/*')
KERNEL_TESTS := tests/project tests/kernel tests/plugins/auth tests/plugins/test_identity.py tests/plugins/test_session.py \
	tests/plugins/stores/sqlite $(patsubst %,tests/acceptance/test_%.py,contract crash draining errors logs metrics \
	reload servers_alike sessions shutdown)
# Tests start ingestd some two thousand times: where nothing may be kept, each start would compile all of it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run demo demo-traffic install ready-for-tests test test-kernel test-long check lint types bench hostile soak growth man openapi surface browser-client browser-types docs dist screenshots clean

run: install
	-@scripts/need curl curl
	@$(BIN)/python scripts/demo.py --folder demo --port $(PORT) --ops-port $(OPS_PORT)

demo: install
	-@$(BIN)/python -m scripts.demo_pages --folder demo --port $(PORT) --ops-port $(OPS_PORT) --shop-port $(SHOP_PORT)

demo-traffic: .venv/installed
	@$(BIN)/python -m scripts.demo_traffic --folder demo --rate $(RATE) $(if $(SECONDS),--seconds $(SECONDS))

install: .venv/installed

ready-for-tests: .venv/compiled-for-tests $(BIN)/prometheus $(SDKS)/node_modules/installed $(KAFKA)/lib/classes.jsa

test: ready-for-tests
	TMPDIR=$$(scripts/tmpdir) $(BIN)/pytest --processes 8

# What every shop runs: no browsers, SDKs, installations, Redis, and no sinks with servers.
test-kernel: .venv/compiled-for-tests
	TMPDIR=$$(scripts/tmpdir) $(BIN)/pytest --processes 6 $(KERNEL_TESTS)

# Rules with 500 generated examples instead of 30, and the tests that take minutes.
test-long: .venv/dbt/installed .venv/readers/installed $(KAFKA)/apicurio/installed $(ICEBERG)/lib/installed \
	$(AZURITE)/node_modules/installed ready-for-tests
	$(BIN)/pytest --processes 8 --hypothesis-profile long -m "hypothesis or long"

# Types are checked beside the installations that mostly wait for the network.
check:
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=target types ready-for-tests
	@$(MAKE) --no-print-directory test

lint: .venv/installed-for-tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/installed-for-tests
	$(BIN)/mypy ingestd tests benchmarks scripts
	cd examples/hooks && ../../$(BIN)/mypy --config-file ../../setup.cfg .
	cd examples/ingestd-orders-csv && ../../$(BIN)/mypy --config-file ../../setup.cfg .

bench: .venv/installed
	@scripts/need wrk wrk
	@scripts/need redis-server redis-server
	@$(BIN)/python -m benchmarks.run $(BENCH)
	@$(BIN)/python -m benchmarks.flood $(BENCH_FLOOD)
	@$(BIN)/python -m benchmarks.attribution $(BENCH_ATTRIBUTION)
	@$(BIN)/python -m benchmarks.redis $(BENCH_REDIS)
	@$(BIN)/python -m benchmarks.cluster $(BENCH_CLUSTER)
	@$(BIN)/python -m benchmarks.hooks $(BENCH_HOOKS)
	@$(BIN)/pip install --quiet --editable '.[iceberg,parquet]'
	@$(BIN)/python -m benchmarks.sinks $(BENCH_SINKS)
	@$(MAKE) --no-print-directory $(KAFKA)/lib/installed
	@$(BIN)/pip install --quiet --editable '.[kafka]'
	@$(BIN)/python -m benchmarks.kafka $(BENCH_KAFKA)
	@$(BIN)/python -m benchmarks.clickhouse $(BENCH_CLICKHOUSE)
	@$(BIN)/python -m benchmarks.intakes $(BENCH_INTAKES)
	@$(BIN)/python -m benchmarks.live $(BENCH_LIVE)
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || scripts/need - postgresql
	@$(BIN)/pip install --quiet --editable '.[postgres]'
	@$(BIN)/python -m benchmarks.postgres

hostile: .venv/installed
	@scripts/need redis-server redis-server
	@$(BIN)/python -m benchmarks.hostile $(HOSTILE)
	@$(BIN)/python -m benchmarks.hostile_prices $(HOSTILE)
	@$(BIN)/python -m benchmarks.hostile_memory $(HOSTILE_MEMORY)
	@$(BIN)/python -m benchmarks.hostile_storage $(HOSTILE_STORAGE)

soak: .venv/installed
	@$(BIN)/python -m benchmarks.soak $(SOAK)

growth: .venv/installed
	@scripts/need wrk wrk
	@$(BIN)/python -m benchmarks.growth $(GROWTH)

# The manual pages, after a change of commands or their help.
man: .venv/installed-for-tests
	@$(BIN)/python scripts/man.py

# The static OpenAPI document, after a change of schemas, answers or the version.
openapi: .venv/installed
	@$(BIN)/python -m scripts.openapi

# The list of all that others can name, after a change of an option, hook, metric, command, answer, or name of the API.
surface: .venv/installed
	@$(BIN)/python -m scripts.surface

# The browser client's files, after a change of its sources.
browser-client: .venv/installed $(SDKS)/node_modules/installed
	@$(BIN)/python -m scripts.browser_client

# The types of events of the clients, after a change of schemas.
browser-types: .venv/installed
	@$(BIN)/python -m scripts.browser_types

# The documentation as a site, in site/.
docs: .venv/installed
	@$(BIN)/pip install --quiet --editable '.[docs]'
	@$(BIN)/python -m scripts.docs_site

# What a release offers for download, in dist/: sdist, wheel, wheelhouse, SBOM, Debian package.
dist: .venv/installed
	@$(BIN)/pip install --quiet --editable '.[dist]'
	@test -x /usr/bin/python3 && /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || scripts/need - python3-venv
	@$(BIN)/python -m scripts.dist --extras '$(EXTRAS)'

# Pictures of the operators' page for the docs, after a change of the page.
screenshots: .venv/installed
	@scripts/need chromium chromium
	@$(BIN)/python -m scripts.screenshots

clean:
	rm -rf .venv build dist site .cache *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis $(SDKS)/node_modules $(KAFKA)/lib $(KAFKA)/apicurio $(ICEBERG)/lib $(AZURITE)/node_modules

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ingestd needs Python 3.11 or newer")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || scripts/need - python3-venv
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python $(SETUP)
	$(BIN)/pip install --quiet --editable .
	@touch $@

# uv installs these many libraries in a fifth of pip's time. Where it cannot, such as with an index that only pip knows,
# pip does.
.venv/installed-for-tests: .venv/bin/python $(SETUP)
	$(BIN)/pip install --quiet uv && $(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[test,lint]' \
		|| $(BIN)/pip install --quiet --editable '.[test,lint]'
	@scripts/need curl curl
	@scripts/need redis-server redis-server
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || scripts/need - postgresql
	@scripts/need faketime faketime
	@scripts/need nats-server nats-server
	@# Tests start their own server; the service of the package stays off.
	@test -x /usr/sbin/clickhouse-server || { scripts/need clickhouse-server clickhouse-server \
		&& { systemctl disable --now clickhouse-server >/dev/null 2>&1 || true; }; }
	@command -v prometheus-alertmanager >/dev/null || { scripts/need - prometheus-alertmanager \
		&& { systemctl disable --now prometheus-alertmanager >/dev/null 2>&1 || true; }; }
	@scripts/need chromium chromium
	@scripts/need firefox-esr firefox-esr
	@scripts/need openssl openssl
	@scripts/need php php-cli
	@php -r 'exit(!extension_loaded("curl"));' || scripts/need - php-curl
	@scripts/need ruby ruby
	@scripts/need zsh zsh
	@scripts/need fish fish
	@scripts/need systemd-analyze systemd
	@scripts/need systemd-nspawn systemd-container
	@touch .venv/installed $@

# dbt, of the long tests, in an environment of its own: its dependencies are many, and bound to versions.
.venv/dbt/installed: | .venv/bin/python
	@$(BIN)/python -m venv .venv/dbt
	@.venv/dbt/bin/pip install --quiet 'dbt-core >=1.11, <1.12' dbt-clickhouse dbt-duckdb dbt-postgres
	@touch $@

# Readers of Iceberg, of the long tests. DuckDB and its extension have the same version.
.venv/readers/installed: | .venv/bin/python
	@$(BIN)/python -m venv .venv/readers
	@.venv/readers/bin/pip install --quiet duckdb==1.5.5 duckdb-extension-avro==1.5.5 duckdb-extension-iceberg==1.5.5 \
		'polars >=2, <3' pyarrow 'pyiceberg[sql-sqlite] >=0.12, <0.13'
	@touch $@

# Else each of the processes of a run would compile all tests and ingestd itself, at the same time.
.venv/compiled-for-tests: .venv/installed-for-tests $(TESTS)
	@$(BIN)/pytest --collect-only -qq >.venv/collected || { cat .venv/collected; exit 1; }
	@# Each of them would also decode each character once, which hypothesis keeps in a file.
	@$(BIN)/python -c "from hypothesis.strategies import characters; characters(codec='utf-8').validate()"
	@touch $@

$(BIN)/prometheus: | .venv/bin/python
	@scripts/prometheus $(BIN)

# The SDKs for Node.js and browsers, and for Go where Go is present. The lock files have their checksums.
$(SDKS)/node_modules/installed: $(SDKS)/package-lock.json $(SDKS)/programs/go/go.sum
	@scripts/need node nodejs
	@scripts/need npm npm
	@cd $(SDKS) && npm ci --loglevel=error
	@! command -v go >/dev/null || (cd $(SDKS)/programs/go && go build gopkg.in/segmentio/analytics-go.v3)
	@touch $@

# Apache Kafka's broker, and Iceberg's own catalogue over REST for a long test, which are programs for Java. Maven
# checks the checksums of their packages.
$(KAFKA)/lib/installed $(ICEBERG)/lib/installed: %/lib/installed: %/pom.xml
	@scripts/need java openjdk-17-jre-headless
	@scripts/need mvn maven
	@rm -rf $*/lib
	@cd $* && mvn --batch-mode --quiet -Dstyle.color=never dependency:copy-dependencies
	@touch $@

# The emulator of Azure Blob Storage, for long tests.
$(AZURITE)/node_modules/installed: $(AZURITE)/package-lock.json
	@scripts/need node nodejs
	@scripts/need npm npm
	@cd $(AZURITE) && npm ci --loglevel=error
	@touch $@

# A schema registry, for a long test.
$(KAFKA)/apicurio/installed: $(KAFKA)/lib/installed
	@rm -rf $(KAFKA)/apicurio && mkdir $(KAFKA)/apicurio
	@cd $(KAFKA)/apicurio && mvn --batch-mode --quiet -Dstyle.color=never dependency:copy \
		-Dartifact=io.apicurio:apicurio-registry-app:2.6.13.Final:tar.gz:all -DoutputDirectory=.
	@cd $(KAFKA)/apicurio && tar xzf *.tar.gz && rm *.tar.gz
	@touch $@

$(KAFKA)/lib/classes.jsa: $(KAFKA)/lib/installed tests/support/kafka_archive.py
	@$(BIN)/python -c "from tests.support.kafka_archive import make_archive; make_archive()"
