/* Numbers of GPUs in users' notation. */
#pragma once

#include <stddef.h>

enum { kGpuwireGpusMax = 1024 };

/* Returns the number; 0: the text is no number from 1 to kGpuwireGpusMax. */
static inline unsigned gpuwire_gpus(const char* text) {
  unsigned number = 0;
  if (text == NULL || *text == '\0') return 0;
  for (; *text != '\0'; ++text) {
    if (*text < '0' || *text > '9') return 0;
    number = number * 10 + (unsigned)(*text - '0');
    if (number > kGpuwireGpusMax) return 0;
  }
  return number;
}
