#!/bin/sh -e
# install.sh -- an installed copy works away from the tree: the program, a host program built with pkg-config, headers.
# Prints TAP. Run from the project's root after make.
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
make --no-print-directory install PREFIX="$root/prefix" >"$root/log" 2>&1 || { cat "$root/log"; echo 'not ok 1 - make install'; exit 1; }
mv "$root/prefix" "$root/moved"                 # the program finds its files relative to itself
cd "$root"
count=0 failed=0
check() {                                       # check NAME EXPECTED ACTUAL
  count=$((count + 1))
  if [ "$2" = "$3" ]; then echo "ok $count - $1"; else failed=1; echo "not ok $count - $1"; echo "# wanted '$2', got '$3'"; fi
}
unset LUA_PATH
check 'a moved z3lua computes' 6 "$("$root/moved/bin/z3lua" -e 'print(z3.arange(4):sum():item())' 2>&1)"
check 'models come along' table "$("$root/moved/bin/z3lua" -e "print(type(require 'models.gpt2'))" 2>&1)"

mv "$root/moved" "$root/prefix"
cat >host.c <<'C'
#include <stdio.h>
#include <z3lua.h>
int main(int argc, char **argv)
{
  z3lua *vm = NULL;
  double v = 0;
  if (z3lua_open(&vm, argc, argv) != 0 ||
      z3lua_run_string(vm, "z3 = require 'z3' function total(n) return z3.arange(n):sum():item() end", NULL) != 0 ||
      z3lua_call(vm, "total", "i>d", 5, &v) != 0) {
    printf("%s\n", z3lua_error(vm));
  }
  printf("%g\n", v);
  z3lua_close(vm);
  return 0;
}
C
cat >native.c <<'C'
#include <stdio.h>
#include <zero3/zero3.h>
int main(void) { printf("%s\n", z3_code_name(Z3E_OOM)); return 0; }
C
export PKG_CONFIG_PATH="$root/prefix/lib/pkgconfig"
cc host.c -o host $(pkg-config --cflags --libs z3lua)
check 'a host program, shared' 10 "$(./host 2>&1)"
cc host.c -o host_static $(pkg-config --cflags z3lua) "$root/prefix/lib/libz3lua.a" $(pkg-config --libs luajit) -lm -ldl
mkdir elsewhere && mv host_static elsewhere/
check 'a host program, static' 10 "$(elsewhere/host_static 2>&1)"
cc native.c -o native $(pkg-config --cflags z3lua) -L"$root/prefix/lib" -Wl,-rpath,"$root/prefix/lib" -lzero3
check 'a C program on the core' OOM "$(./native 2>&1)"
echo "1..$count"
exit $failed
