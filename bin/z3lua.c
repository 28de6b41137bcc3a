/* z3lua.c -- the program: its own options, then a script, code, or the prompt. A small user of lua/embed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "z3lua.h"

enum { EXIT_SCRIPT = 1, EXIT_USAGE = 2, CODES_MAX = 16 };

/* Every option of the program. Those not built yet say so: nothing is ignored silently. */
typedef struct option {
  const char *name, *value, *help;      /* value: what follows it, NULL for a flag */
  int built;
} option;

static const option OPTIONS[] = {
  { "-e",             "CODE",    "run CODE (may be given several times, before the script)", 1 },
  { "-i",             NULL,      "prompt after the script", 1 },
  { "-n",             "N",       "ranks on this machine", 0 },
  { "--hosts",        "A:2,B:2", "ranks on other machines", 0 },
  { "--device",       "NAME",    "default device: cpu, null (shapes and bytes only, nothing computed)", 1 },
  { "--threads",      "N",       "threads of the kernels; default: one for each core", 1 },
  { "--memory-limit", "SIZE",    "hard limit of the device's memory, as 512MiB or 16GB", 1 },
  { "--plan",         NULL,      "dry run: memory, communication, gathers", 0 },
  { "--host-limit",   "SIZE",    "hard limit of host memory", 0 },
  { "--tune",         NULL,      "find good knobs", 0 },
  { "--print-config", "FILE",    "effective configuration", 0 },
  { "--profile",      NULL,      "where a step's time goes: a table on standard error at the end", 1 },
  { "--trace",        "FILE",    "the same as events, for chrome://tracing or ui.perfetto.dev", 1 },
  { "--on-error",     "repl",    "prompt where an error happened", 0 },
  { "--timeout",      "SECONDS", "deadline of a collective", 0 },
  { "--version",      NULL,      "versions and features", 1 },
  { "--help",         NULL,      "this text", 1 },
};
enum { OPTION_COUNT = sizeof OPTIONS / sizeof OPTIONS[0] };

typedef struct command {
  z3lua_options vm;
  const char *codes[CODES_MAX];
  int n_codes, prompt, version;
  const char *script;                   /* NULL: none */
} command;

static int usage_error(const char *text, const char *word)
{
  fprintf(stderr, "z3lua: %s%s\n", text, word);
  return EXIT_USAGE;
}

static void print_help(void)
{
  printf("z3lua [options] [script.lua [its options]]     without a script: a prompt, or code from standard input\n");
  for (int i = 0; i < OPTION_COUNT; i++) {
    const option *o = &OPTIONS[i];
    char left[40];
    snprintf(left, sizeof left, "%s %s", o->name, o->value != NULL ? o->value : "");
    printf("  %-22s %s%s\n", left, o->help, o->built ? "" : " (not supported yet)");
  }
  printf("z3lua's own options come before the script; `z3lua script.lua --help` asks the script.\n");
}

/* The nearest option's name, by the rule that scripts use for their own keys. */
static int unknown_option(const char *word)
{
  z3lua *vm;
  const char *hint = "";
  char code[1024] = "local names = {";
  for (int i = 0; i < OPTION_COUNT; i++) {
    size_t used = strlen(code);
    snprintf(code + used, sizeof code - used, "'%s',", OPTIONS[i].name);
  }
  size_t used = strlen(code);
  snprintf(code + used, sizeof code - used, "} function hint(w) return require('z3.nearest').hint(w, names) end");
  if (z3lua_open(&vm, 0, NULL) == Z3LUA_OK && z3lua_run_string(vm, code, NULL) == Z3LUA_OK) {
    (void)z3lua_call(vm, "hint", "s>s", word, &hint);
  }
  fprintf(stderr, "z3lua: unknown option %s%s; z3lua --help lists all\n", word, hint);
  z3lua_close(vm);
  return EXIT_USAGE;
}

/* A file that can't be written is said before hours of work, not after them. */
static int writable(const char *path)
{
  if (access(path, F_OK) == 0) return access(path, W_OK) == 0;
  FILE *f = fopen(path, "ab");
  if (f == NULL) return 0;
  fclose(f);
  return unlink(path) == 0;
}

static int set_option(command *c, const option *o, const char *value)
{
  char *end;
  if (!o->built) return usage_error("not supported yet: ", o->name);
  if (strcmp(o->name, "-e") == 0) {
    if (c->n_codes == CODES_MAX) return usage_error("too many -e: ", value);
    c->codes[c->n_codes++] = value;
  } else if (strcmp(o->name, "-i") == 0) {
    c->prompt = 1;
  } else if (strcmp(o->name, "--device") == 0) {
    if (strcmp(value, "cuda") == 0) return usage_error("not supported yet: --device ", value);
    if (strcmp(value, "cpu") != 0 && strcmp(value, "null") != 0) {
      return usage_error("--device is cpu or null, not ", value);
    }
    c->vm.device = value;
  } else if (strcmp(o->name, "--threads") == 0) {
    long n = strtol(value, &end, 10);
    if (*value == '\0' || *end != '\0' || n < 1 || n > 4096) {
      return usage_error("--threads wants 1 to 4096, not ", value);
    }
    c->vm.threads = (int)n;
  } else if (strcmp(o->name, "--memory-limit") == 0) {
    c->vm.memory_limit = value;
  } else if (strcmp(o->name, "--profile") == 0) {
    c->vm.profile = 1;
  } else if (strcmp(o->name, "--trace") == 0) {
    if (!writable(value)) return usage_error("--trace: cannot write ", value);
    c->vm.trace = value;
  } else if (strcmp(o->name, "--version") == 0) {
    c->version = 1;
  }
  return 0;
}

/* Finds the option of a word, "--name" or "--name=value"; *value is then what stands after '='. */
static const option *find_option(const char *word, const char **value)
{
  const char *equals = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
  size_t n = equals != NULL ? (size_t)(equals - word) : strlen(word);
  *value = equals != NULL ? equals + 1 : NULL;
  for (int i = 0; i < OPTION_COUNT; i++) {
    if (strlen(OPTIONS[i].name) == n && strncmp(OPTIONS[i].name, word, n) == 0) return &OPTIONS[i];
  }
  return NULL;
}

/* Reads the program's own options; -1: go on, else the exit code. */
static int parse(command *c, int argc, char **argv)
{
  int i = 1;
  for (; i < argc && argv[i][0] == '-' && argv[i][1] != '\0'; i++) {
    const char *value;
    if (strcmp(argv[i], "--") == 0) {
      i++;
      break;
    }
    const option *o = find_option(argv[i], &value);
    if (o == NULL) return unknown_option(argv[i]);
    if (strcmp(o->name, "--help") == 0) {
      print_help();
      return 0;
    }
    if (o->value == NULL && value != NULL) return usage_error("takes no value: ", o->name);
    if (o->value != NULL && value == NULL && o->built) {
      if (i + 1 >= argc) return usage_error("wants a value: ", o->name);
      value = argv[++i];
    }
    int rc = set_option(c, o, value);
    if (rc != 0) return rc;
  }
  if (i < argc) c->script = argv[i];
  /* Without a script, arg[0] is the program and there is nothing else: the rest was ours. */
  c->vm.argc = i < argc ? argc : 1;
  c->vm.argv = argv;
  c->vm.script_index = i < argc ? i : 0;
  c->vm.owns_process = 1;
  return -1;
}

/* Prints the newest error once, with the script's own lines. */
static int report(z3lua *vm)
{
  fflush(stdout);
  fprintf(stderr, "z3lua: %s\n", z3lua_error(vm));
  if (z3lua_traceback(vm)[0] != '\0') fprintf(stderr, "%s\n", z3lua_traceback(vm));
  return EXIT_SCRIPT;
}

static int run(z3lua *vm, const command *c)
{
  if (c->version) return z3lua_run_string(vm, "print(require('z3.repl').banner())", "=z3lua");
  if (c->n_codes > 0 && z3lua_run_string(vm, "require('z3.repl').predefine()", "=z3lua") != 0) return 1;
  for (int i = 0; i < c->n_codes; i++) {
    if (z3lua_run_string(vm, c->codes[i], "=(command line)") != 0) return 1;
  }
  if (c->script != NULL && z3lua_run_file(vm, c->script) != 0) return 1;
  if (!c->prompt && (c->script != NULL || c->n_codes > 0)) return 0;
  return z3lua_run_string(vm, "require('z3.repl').run()", "=z3lua");
}

int main(int argc, char **argv)
{
  command c = { 0 };
  z3lua *vm;
  int rc = parse(&c, argc, argv);
  if (rc >= 0) return rc;
  rc = z3lua_open_with(&vm, &c.vm);
  if (rc != 0) {                        /* an option's value, or an installation that isn't whole */
    fprintf(stderr, "%s\n", z3lua_error(vm));
    rc = EXIT_USAGE;
  } else if (run(vm, &c) != 0) {
    rc = report(vm);
  }
  z3lua_close(vm);
  return rc;
}
