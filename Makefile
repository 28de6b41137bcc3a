# z3lua -- see README.md. Targets: all, deps, demo, test, test-all, bench, lint, size, install, clean.
B := build
CC ?= cc
PKGS := luajit
CSTD := -std=gnu11 -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror=implicit
CFLAGS ?= -O2 -g
ALL_CFLAGS := $(CSTD) $(CFLAGS) -fPIC -fopenmp -fvisibility=hidden -ffp-contract=off -fno-math-errno -fno-trapping-math \
	-Icore -Icore/include -MMD -MP
CORE_SRC := $(filter-out core/device/cpu/isa/%,$(wildcard core/*/*.c core/device/*/*.c))
ISA_SRC := $(wildcard core/device/cpu/isa/*.c)
ISAS := v2 v3 v4
CORE_OBJ := $(CORE_SRC:%.c=$B/%.o)
ISA_OBJ := $(foreach i,$(ISAS),$(ISA_SRC:%.c=$B/%.$i.o))
LIBS := -lcjson -ldnnl -lm -lpthread -ldl

all: $B/libzero3.so $B/lua/z3/cdef.lua
$B/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c $< -o $@
define isa_rule
$B/%.$(1).o: %.c
	@mkdir -p $$(@D)
	$(CC) $(ALL_CFLAGS) -O3 -march=x86-64-$(1) -DZ3I_ISA=$(1) -c $$< -o $$@
endef
$(foreach i,$(ISAS),$(eval $(call isa_rule,$i)))
$B/libzero3.so: $(CORE_OBJ) $(ISA_OBJ)
	$(CC) -shared -fopenmp -o $@ $^ $(LIBS)
-include $(CORE_OBJ:.o=.d) $(ISA_OBJ:.o=.d)
