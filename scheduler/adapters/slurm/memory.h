/* Sizes of memory in the notation of Slurm's users and of gpuwire's commands. */
#pragma once

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Returns the bytes of "20G", "20GiB" (by 1024, as in Slurm), "20GB" (by 1000), "512M" or "1000B". 0: the text is no
 * size above 0 with a unit. */
static inline uint64_t gpuwire_memory_bytes(const char* text) {
  static const char kUnits[] = "KMGT";
  static const double kBytesMax = 1e18;
  if (text == NULL || text[0] < '0' || text[0] > '9') return 0;
  char* end;
  errno = 0;
  double bytes = strtod(text, &end);
  if (errno != 0 || *end == '\0') return 0;
  const char* unit = strchr(kUnits, *end);
  if (unit != NULL) {
    const char* suffix = end + 1;
    if (*suffix != '\0' && strcmp(suffix, "iB") != 0 && strcmp(suffix, "B") != 0) return 0;
    for (const char* each = kUnits; each <= unit; ++each) bytes *= strcmp(suffix, "B") == 0 ? 1000 : 1024;
  } else if (strcmp(end, "B") != 0) {
    return 0;
  }
  return bytes >= 1 && bytes < kBytesMax ? (uint64_t)bytes : 0;
}
