# z3lua -- builds everything into build/. The targets are listed by `make help`.
#
#   make CC=clang CFLAGS='-O3 -g'   other flags rebuild what they change (saved in build/config.mk)
#   make SAN=1 test                 AddressSanitizer and UBSan, in build/san
#   make B=build/clang CC=clang     a second build beside the first
# Features are probed; one that is asked for by hand (MPI=1) and missing stops the build.

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
.SECONDARY:
VERSION := 0.1.0
PREFIX ?= /usr/local
SAN ?= 0
WERROR ?= 0
ifneq ($(origin B),command line)
B := $(if $(filter 1,$(SAN)),build/san,build)
endif
ifeq ($(origin CC),default)
CC := cc
endif
LUAJIT ?= luajit
CFLAGS ?= -O2 -g
# All cores, unless -j says otherwise (here or in the make that called this one).
ifeq ($(filter -j% --jobserver%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
V ?= 0
# say,WORD: a short line instead of the command; V=1 shows commands.
say = $(if $(filter 1,$V),,@echo '  $(1) $@';)
GOALS := $(or $(MAKECMDGOALS),all)
# Goals that compile nothing need no probes: they must work on a bare machine.
COMPILES := $(filter-out deps demo clean help size,$(GOALS))

# ---- what the machine has ------------------------------------------------------------------------
ifneq ($(COMPILES),)
have_pkg = $(shell pkg-config --exists $(1) 2>/dev/null && echo 1)
compiles = $(shell printf '$(1)' | $(CC) $(2) -x c -o /dev/null - 2>/dev/null && echo 1)
H := \043
OMP := $(call compiles,$Hinclude <omp.h>\nint main(void){return omp_get_max_threads()<1;}\n,-fopenmp)
ONEDNN_FOUND := $(shell printf '\043include <oneapi/dnnl/dnnl_version.h>\nV DNNL_VERSION_MAJOR.DNNL_VERSION_MINOR\n' \
	| $(CC) -E -P - 2>/dev/null | sed -n 's/^V *//p' | tr -d ' ')
GC64 := $(shell $(LUAJIT) -e "io.write('2.1-', require('ffi').abi('gc64') and 'gc64' or 'gc32')" 2>/dev/null)
LACKS := $(if $(shell command -v $(CC)),,a C compiler (gcc)) $(if $(OMP),,OpenMP for $(CC) (clang: libomp-dev)) \
	$(if $(ONEDNN_FOUND),,oneDNN (libdnnl-dev)) \
	$(if $(call have_pkg,luajit),,LuaJIT (libluajit-5.1-dev)) $(if $(GC64),,luajit) \
	$(if $(call have_pkg,libcjson),,cJSON (libcjson-dev))
ifneq ($(strip $(LACKS)),)
$(error missing: $(strip $(LACKS)). `make deps` installs what is lacking)
endif
ifneq ($(GC64),2.1-gc64)
$(error $(LUAJIT) is $(GC64): z3lua needs LuaJIT 2.1 with 64-bit pointers (GC64))
endif
# A feature given by hand is a demand. These are planned and not built yet, so the demand cannot be met.
$(foreach f,CUDA MPI NCCL URING,$(if $(filter-out 0,$($f)),$(error $f=$($f): not supported yet: $f)))
$(foreach f,ONEDNN OPENMP,$(if $(filter 0,$($f)),$(error $f=0: the cpu device cannot be built without it)))
BF16 := $(shell sed -n '/^flags/{s/.* amx_bf16 .*/amx/p;t;s/.* avx512_bf16 .*/avx512/p;q}' /proc/cpuinfo 2>/dev/null | head -1)
FEATURES := onednn=$(ONEDNN_FOUND) openmp=1 luajit=$(GC64) mpi=0 cuda=0 nccl=0 uring=0
endif

# ---- flags ---------------------------------------------------------------------------------------
ARCH := $(shell $(CC) -dumpmachine 2>/dev/null)
ISAS := $(if $(filter x86_64%,$(ARCH)),v2 v3 v4,base)
comma := ,
SAN_FLAGS := $(if $(filter 1,$(SAN)),-fsanitize=address$(comma)undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
WARN := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror=implicit $(if $(filter 1,$(WERROR)),-Werror)
# Not -fvisibility=hidden: core/zero3.map hides what isn't public. -ffp-contract=off: the code computes what it says.
BASE_CFLAGS := -std=gnu11 $(WARN) $(CFLAGS) $(SAN_FLAGS) -fPIC -Icore -Icore/include -MMD -MP
CORE_CFLAGS := $(BASE_CFLAGS) -fopenmp -Wno-psabi -fno-semantic-interposition -ffp-contract=off -fno-math-errno -fno-trapping-math
LUA_CFLAGS := $(shell pkg-config --cflags luajit 2>/dev/null)
LUA_LIBS := $(shell pkg-config --libs luajit 2>/dev/null)
# With clang, libomp is the library's own dependency and libgomp only oneDNN's, so the loader finds libomp's GOMP_*
# symbols first and both use one pool of threads.
CORE_LIBS := -fopenmp -lcjson -ldnnl -lm -lpthread -ldl
define CONFIG
CC=$(CC) $(shell $(CC) -dumpversion 2>/dev/null)
CORE=$(CORE_CFLAGS)
LUA=$(LUA_CFLAGS)
FEATURES=$(FEATURES)
endef

# ---- files ---------------------------------------------------------------------------------------
CORE_SRC := $(filter-out core/device/cpu/isa/%,$(wildcard core/*/*.c core/*/*/*.c))
ISA_SRC := $(wildcard core/device/cpu/isa/*.c)
PUBLIC_H := $(wildcard core/include/zero3/*.h core/include/zero3/*.def) core/base/err.def
EMBED_SRC := $(wildcard lua/embed/*.c)
TEST_SRC := $(wildcard tests/c/test_*.c)
CORE_OBJ := $(CORE_SRC:%.c=$B/%.o)
CHECK_OBJ := $(CORE_SRC:%.c=$B/check/%.o)
ISA_OBJ := $(foreach i,$(ISAS),$(ISA_SRC:%.c=$B/%.$i.o))
EMBED_OBJ := $(EMBED_SRC:%.c=$B/%.o)
TEST_BIN := $(TEST_SRC:tests/c/%.c=$B/tests/%)
CDEF := $B/lua/z3/cdef.lua
PROGRAM := $(if $(wildcard bin/z3lua.c),$B/bin/z3lua bin/z3lua $B/libz3lua.so $B/libz3lua.a)

ifneq ($(COMPILES),)
$(shell mkdir -p $B)
$(file >$B/config.new,$(CONFIG))
$(shell cmp -s $B/config.new $B/config.mk || { mv $B/config.new $B/config.mk; \
	echo 'zero3: $(FEATURES) bf16=$(or $(BF16),no)' >&2; }; rm -f $B/config.new)
endif

.PHONY: all help deps demo test test-all bench lint size install clean tests
all: $B/libzero3.so $(CDEF) $(PROGRAM)

help:
	@echo 'make            libzero3.so, the interpreter bin/z3lua, libz3lua'
	@echo 'make deps       installs the Debian/Ubuntu packages that are lacking, or names them and stops'
	@echo 'make demo       trains a small GPT on real text and prints a sample; DATA=any.txt'
	@echo 'make test       C and Lua tests; SAN=1 with sanitizers; ONLY=word runs the files whose names contain it'
	@echo 'make test-all   lint, tests, sanitizers, clang, an installed copy'
	@echo 'make lint       layers, headers, sizes, luacheck'
	@echo 'make bench      speed on this machine; PEER=VENV beside PyTorch, QUICK=1, ONLY=word, OUT=results.jsonl'
	@echo 'make size       lines per folder'
	@echo 'make install    PREFIX=/usr/local; DESTDIR= is honoured'
	@echo 'make clean      removes build/'

# ---- the library ---------------------------------------------------------------------------------
$B/%.o: %.c $B/config.mk
	@mkdir -p $(@D)
	$(call say,CC)$(CC) $(CORE_CFLAGS) -c $< -o $@

# The same sources with assertions that abort: what the C tests link.
$B/check/%.o: %.c $B/config.mk
	@mkdir -p $(@D)
	$(call say,CC)$(CC) $(CORE_CFLAGS) -DZ3_TEST=1 -c $< -o $@

# Kernels, once per instruction set; the table in force is picked at start.
define isa_rule
$B/%.$(1).o: %.c $B/config.mk
	@mkdir -p $$(@D)
	$$(call say,CC)$(CC) $(CORE_CFLAGS) -O3 $(if $(filter v%,$(1)),-march=x86-64-$(1)) -DZ3I_ISA=$(1) -c $$< -o $$@
endef
$(foreach i,$(ISAS),$(eval $(call isa_rule,$i)))

# The public headers as LuaJIT reads them. Their hash is compiled in too, and compared when the library is loaded.
$(CDEF): $(PUBLIC_H) $B/config.mk
	@mkdir -p $(@D)
	$(call say,GEN)$(CC) -E -P -DZ3_CDEF -Icore/include core/include/zero3/zero3.h | sed '/^[[:space:]]*$$/d' > $(@:.lua=.txt)
	@sha256sum < $(@:.lua=.txt) | cut -c1-16 > $(@:.lua=.hash)
	@{ echo '-- Generated from core/include/zero3/*.h. hash: what z3_abi_hash() of a library built from them returns.'; \
	  printf 'return { hash = "%s", text = [==[\n' "$$(cat $(@:.lua=.hash))"; cat $(@:.lua=.txt); echo ']==] }'; } > $@

VERSION_DEFS = -DZ3I_VERSION='"$(VERSION)"' -DZ3I_FEATURES='"$(FEATURES)"' -DZ3I_ABI_HASH=0x$$(cat $(CDEF:.lua=.hash))ull
$B/core/base/version.o: core/base/version.c $(CDEF) Makefile
	@mkdir -p $(@D)
	$(call say,CC)$(CC) $(CORE_CFLAGS) $(VERSION_DEFS) -c $< -o $@
$B/check/core/base/version.o: core/base/version.c $(CDEF) Makefile
	@mkdir -p $(@D)
	$(call say,CC)$(CC) $(CORE_CFLAGS) -DZ3_TEST=1 $(VERSION_DEFS) -c $< -o $@

# nodelete: threads of the OpenMP pool would wake up in unmapped code if an interpreter closed the library.
$B/libzero3.so: $(CORE_OBJ) $(ISA_OBJ) core/zero3.map
	$(call say,LD)$(CC) -shared $(SAN_FLAGS) -o $@ $(CORE_OBJ) $(ISA_OBJ) -Wl,--version-script=core/zero3.map -Wl,-z,nodelete \
	  $(if $(SAN_FLAGS),,-Wl,-z$(comma)defs) $(CORE_LIBS)

$B/libzero3_check.a: $(CHECK_OBJ) $(ISA_OBJ)
	@rm -f $@
	$(call say,AR)ar rcs $@ $^

# ---- the interpreter -----------------------------------------------------------------------------
$B/lua/embed/%.o: lua/embed/%.c $B/config.mk
	@mkdir -p $(@D)
	$(call say,CC)$(CC) $(BASE_CFLAGS) $(LUA_CFLAGS) -Ilua/embed -c $< -o $@
$B/bin/%.o: bin/%.c $B/config.mk
	@mkdir -p $(@D)
	$(call say,CC)$(CC) $(BASE_CFLAGS) $(LUA_CFLAGS) -Ilua/embed -c $< -o $@
$B/libz3lua.a: $(EMBED_OBJ)
	@rm -f $@
	$(call say,AR)ar rcs $@ $^
$B/libz3lua.so: $(EMBED_OBJ) lua/embed/embed.map
	$(call say,LD)$(CC) -shared $(SAN_FLAGS) -o $@ $(EMBED_OBJ) -Wl,--version-script=lua/embed/embed.map $(LUA_LIBS) -lm -ldl
$B/bin/z3lua: $B/bin/z3lua.o $B/libz3lua.a
	$(call say,LD)$(CC) $(SAN_FLAGS) -o $@ $^ $(LUA_LIBS) -lm -ldl
# bin/z3lua points to the build that was made last without B=.
bin/z3lua: $B/bin/z3lua
	$(if $(filter build,$B),@ln -sfn ../build/bin/z3lua $@,@:)

# ---- tests ---------------------------------------------------------------------------------------
$B/tests/%.o: tests/c/%.c $B/config.mk
	@mkdir -p $(@D)
	$(call say,CC)$(CC) $(CORE_CFLAGS) $(LUA_CFLAGS) -Ilua/embed -DZ3_TEST=1 -c $< -o $@
# A host program has no core inside it: it finds the library beside itself, as any embedder's does.
$B/tests/test_embed%: $B/tests/test_embed%.o $B/libz3lua.a
	$(call say,LD)$(CC) $(SAN_FLAGS) -o $@ $^ $(LUA_LIBS) -lm -ldl -lcmocka
$B/tests/%: $B/tests/%.o $B/libzero3_check.a
	$(call say,LD)$(CC) $(SAN_FLAGS) -o $@ $^ -lcmocka $(CORE_LIBS)
tests: $(TEST_BIN)
test: all tests
	@B=$B CC='$(CC)' SAN=$(SAN) LUAJIT=$(LUAJIT) $(LUAJIT) tests/run.lua $(ONLY)
test-all:
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory SAN=1 test
	$(MAKE) --no-print-directory B=build/clang CC=clang WERROR=1 test
lint: $(CDEF) $B/libzero3.so
	@for part in deps cdef size words readme; do $(LUAJIT) tests/lint/$$part.lua $B || exit 1; done
	@luacheck -q --codes lua models recipes tests bin
	@echo 'lint: clean'
size:
	@$(LUAJIT) tests/lint/size.lua --report

# ---- speed ---------------------------------------------------------------------------------------
# Plain loops, as good as the compiler makes them for this machine: what memory gives.
$B/bench/stream.so: tests/bench/stream.c $B/config.mk
	@mkdir -p $(@D)
	$(call say,LD)$(CC) -std=gnu11 $(WARN) -O3 -march=native -fno-math-errno -fopenmp -fPIC -shared -o $@ $< -lm
$B/bench/%: tests/bench/%.c $(CORE_OBJ) $(ISA_OBJ)
	@mkdir -p $(@D)
	$(call say,LD)$(CC) $(CORE_CFLAGS) -MF $@.d -o $@ $< $(CORE_OBJ) $(ISA_OBJ) $(CORE_LIBS)
BENCH_C := $(filter-out tests/bench/stream.c,$(wildcard tests/bench/*.c))
bench: all $B/bench/stream.so $(BENCH_C:tests/bench/%.c=$B/bench/%)
	@$B/bin/z3lua tests/bench/run.lua --build '$B' $(if $(QUICK),--quick) $(if $(PEER),--peer '$(PEER)') \
	  $(if $(OUT),--out '$(OUT)') $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ONLY),--only '$(ONLY)')

# ---- packages, demo, install ---------------------------------------------------------------------
PACKAGES := gcc libc6-dev make pkg-config luajit libluajit-5.1-dev libcjson-dev libdnnl-dev \
	libcmocka-dev lua-busted lua-check bible-kjv $(if $(findstring clang,$(CC)),clang libomp-dev)
deps:
	@lack=; for p in $(PACKAGES); do \
	  dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || lack="$$lack $$p"; done; \
	if [ -z "$$lack" ]; then echo 'deps: nothing is lacking'; exit 0; fi; \
	root=; [ "$$(id -u)" = 0 ] || root='sudo -n'; \
	if ! command -v apt-get >/dev/null || ! $$root true 2>/dev/null; then \
	  echo "deps: install these (Debian and Ubuntu names), then run make again:$$lack" >&2; exit 1; fi; \
	echo "deps: installing$$lack"; get="$$root env DEBIAN_FRONTEND=noninteractive apt-get -qq"; \
	get="$$get -o Dpkg::Use-Pty=0"; add="$$get install -y --no-install-recommends $$lack"; \
	$$add >/dev/null 2>&1 || { $$get update && $$add >/dev/null; } || { \
	  echo "deps: apt-get could not install:$$lack" >&2; exit 1; }
# One verse a line without its number, a blank line between chapters.
$B/data/bible.txt:
	@mkdir -p $(@D)
	bible -f gen1:1-rev22:21 </dev/null | awk '{ c = $$1; sub(/:.*/, "", c); if (NR > 1 && c != last) print ""; last = c; \
	  sub(/^[^ ]* /, ""); print }' > $@
	@[ $$(wc -c < $@) -gt 4000000 ] || { echo "demo: the program bible (package bible-kjv) printed no text" >&2; exit 1; }
DATA ?= $B/data/bible.txt
demo: deps
	@$(MAKE) --no-print-directory all $(DATA)
	bin/z3lua recipes/01_train_text.lua --data '$(DATA)' --log $B/demo.jsonl

SHARE = $(DESTDIR)$(PREFIX)/share/z3lua
install: all
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin lib/pkgconfig include/zero3) $(SHARE)
	install -m 755 $B/bin/z3lua $(DESTDIR)$(PREFIX)/bin/
	install -m 755 $B/libzero3.so $B/libz3lua.so $(DESTDIR)$(PREFIX)/lib/
	install -m 644 $B/libz3lua.a $(DESTDIR)$(PREFIX)/lib/
	@mkdir -p $B/install
	$(CC) $(BASE_CFLAGS) $(LUA_CFLAGS) -DZ3LUA_PREFIX='"$(PREFIX)"' -c lua/embed/locate.c -o $B/install/locate.o
	ar r $(DESTDIR)$(PREFIX)/lib/libz3lua.a $B/install/locate.o    # a program linked with it may lie anywhere
	install -m 644 core/include/zero3/*.h core/include/zero3/*.def core/base/err.def $(DESTDIR)$(PREFIX)/include/zero3/
	sed -i 's|"../../base/err.def"|"err.def"|' $(DESTDIR)$(PREFIX)/include/zero3/status.h
	install -m 644 lua/embed/z3lua.h $(DESTDIR)$(PREFIX)/include/
	rm -rf $(SHARE)/lua $(SHARE)/models $(SHARE)/recipes
	find lua/z3 models recipes -type f \( -name '*.lua' -o -name '*.json' -o -name '*.md' \) | \
	  while read -r f; do install -D -m 644 "$$f" "$(SHARE)/$$f"; done
	install -m 644 $(CDEF) $(SHARE)/lua/z3/cdef.lua
	printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' '' 'Name: z3lua' \
	  'Description: trains models that do not fit, from Lua scripts' 'Version: $(VERSION)' 'Requires.private: luajit' \
	  'Cflags: -I$${includedir}' 'Libs: -L$${libdir} -Wl,-rpath,$${libdir} -lz3lua' 'Libs.private: -lm -ldl' \
	  > $(DESTDIR)$(PREFIX)/lib/pkgconfig/z3lua.pc
clean:
	rm -rf build bin/z3lua

-include $(CORE_OBJ:.o=.d) $(CHECK_OBJ:.o=.d) $(ISA_OBJ:.o=.d) $(EMBED_OBJ:.o=.d) $(TEST_BIN:=.d) $B/bin/z3lua.d
