/* intern.c -- one permanent copy of each distinct text: names of modules and parameters, compared by pointer. */
#include <pthread.h>

#include "base/base.h"

enum { SLOTS = 1024 };
typedef struct entry {
  struct entry *next;
  char text[];
} entry;

static entry *table[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const char *z3i_intern(const char *text)
{
  size_t bytes = strlen(text);
  entry **head = &table[z3i_hash_bytes(text, bytes, 0) % SLOTS];
  const char *found = NULL;
  pthread_mutex_lock(&lock);
  for (entry *e = *head; e != NULL && found == NULL; e = e->next)
    if (strcmp(e->text, text) == 0) found = e->text;
  if (found == NULL) {
    entry *e = z3i_alloc(sizeof *e + bytes + 1);
    if (e != NULL) {
      memcpy(e->text, text, bytes + 1);
      e->next = *head;
      *head = e;
      found = e->text;
    }
  }
  pthread_mutex_unlock(&lock);
  return found;
}
