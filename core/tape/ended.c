/* ended.c -- script operations whose nodes are gone: the script keeps what it saved for them under their tags, and asks
 * here which of it it can forget. Pulled, because the library never calls the script. Per thread. */
#include "tape/node.h"

enum { FIRST_ROOM = 64 };
static _Thread_local struct {
  int64_t *tag;
  int count, room;
} ended;

/* Without memory the tag is forgotten: the script then keeps a little too much. */
void z3i_script_ended(int64_t tag)
{
  if (ended.count == ended.room) {
    int room = ended.room ? 2 * ended.room : FIRST_ROOM;
    int64_t *bigger = z3i_realloc(ended.tag, (size_t)room * sizeof *bigger);
    if (bigger == NULL) return;
    ended.tag = bigger;
    ended.room = room;
  }
  ended.tag[ended.count++] = tag;
}

int z3_script_dropped(int64_t *tags, int n)
{
  int got = Z3I_MIN(n, ended.count);
  for (int i = 0; i < got; i++) tags[i] = ended.tag[--ended.count];
  if (ended.count == 0) {
    z3i_free(ended.tag);
    ended.tag = NULL;
    ended.room = 0;
  }
  return got;
}
