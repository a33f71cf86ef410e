/* SPANK plugin: srun, sbatch and salloc know --gpuwire, --gpuwire-mem and --gpuwire-class, and a job's tasks find the
 * GPUs of the job's prolog.
 *
 * On the submitting side the options' values travel to the controller as variables for prolog and epilog
 * (SPANK_GPUWIRE_...), and job_submit_gpuwire.c turns them into licences. On the node the prolog (job.py) has left a
 * folder for the job; its file `environment` has the variables of a task's environment. The plugin reads no secrets:
 * the token is a file of the job's user.
 *
 * Argument in plugstack.conf: run_directory=DIR, as in /etc/gpuwire/slurm.conf. */
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "gpus.h"
#include "memory.h"

SPANK_PLUGIN(gpuwire, 1)

enum { kLineBytesMax = 4096, kVariableBytesMax = 128 * 1024, kReasonBytesMax = 512 };

static const char kDefaultRunDirectory[] = "/run/gpuwire-slurm";
static const char kOurs[] = "GPUWIRE_SLURM_JOB"; /* set in every task's environment */

/* The options of the job or step that this process submits or runs. */
static char asked_gpus[16];
static char asked_memory[32];
static char asked_class[72];

static int take(char* to, size_t bytes, const char* text, const char* option) {
  if (strlen(text) >= bytes) {
    slurm_error("gpuwire: --%s=%.32s... is too long", option, text);
    return -1;
  }
  strcpy(to, text);
  return 0;
}

static int take_gpus(int value, const char* text, int remote) {
  (void)value, (void)remote;
  if (text == NULL) text = "1";
  if (gpuwire_gpus(text) == 0) {
    slurm_error("gpuwire: --gpuwire must be a number of GPUs from 1 to %d, got \"%.32s\"", kGpuwireGpusMax, text);
    return -1;
  }
  return take(asked_gpus, sizeof asked_gpus, text, "gpuwire");
}

/* gpuwire checks the size in the prolog; this check reports a user's mistake early. */
static int take_memory(int value, const char* text, int remote) {
  (void)value, (void)remote;
  if (gpuwire_memory_bytes(text) == 0) {
    slurm_error("gpuwire: --gpuwire-mem must be a size with a unit, such as 20G or 512MiB, got \"%.32s\"",
                text != NULL ? text : "");
    return -1;
  }
  if (take(asked_memory, sizeof asked_memory - 2, text, "gpuwire-mem")) return -1;
  /* Slurm's units are powers of 1024, which gpuwire writes in full. */
  if (strchr("KMGT", asked_memory[strlen(asked_memory) - 1]) != NULL) strcat(asked_memory, "iB");
  return 0;
}

static int take_class(int value, const char* text, int remote) {
  (void)value, (void)remote;
  static const char kAllowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  if (text == NULL || *text == '\0' || text[strspn(text, kAllowed)] != '\0') {
    slurm_error("gpuwire: --gpuwire-class must be a name that your administrator has given");
    return -1;
  }
  return take(asked_class, sizeof asked_class, text, "gpuwire-class");
}

static struct spank_option options[] = {
    {"gpuwire", "N", "N GPUs of a gpuwire server for the job (1 without =N)", 2, 0, take_gpus},
    {"gpuwire-mem", "SIZE", "memory of each that is the job's own, its tasks have equal parts, such as 20G", 1, 0,
     take_memory},
    {"gpuwire-class", "CLASS", "how the job shares them with others, one of the site's classes", 1, 0, take_class},
};

int slurm_spank_init(spank_t spank, int count, char** arguments) {
  (void)count, (void)arguments;
  spank_context_t context = spank_context();
  if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE) return ESPANK_SUCCESS;
  /* srun would read the variable of a job's tasks as its own option --gpus, and ask Slurm for GPUs of the node. */
  if (context == S_CTX_LOCAL && getenv(kOurs) != NULL) unsetenv("SLURM_GPUS");
  for (size_t i = 0; i < sizeof options / sizeof *options; ++i) {
    spank_err_t error = spank_option_register(spank, &options[i]);
    if (error != ESPANK_SUCCESS) {
      slurm_error("gpuwire: --%s: %s", options[i].name, spank_strerror(error));
      return -1;
    }
  }
  return ESPANK_SUCCESS;
}

/* --- where jobs are submitted ------------------------------------------------------------------------------- */

static int notify_controller(spank_t spank, const char* name, const char* value) {
  if (value[0] == '\0') return 0;
  spank_err_t error = spank_job_control_setenv(spank, name, value, 1);
  if (error != ESPANK_SUCCESS) slurm_error("gpuwire: %s: %s", name, spank_strerror(error));
  return error == ESPANK_SUCCESS ? 0 : -1;
}

static int prepare_submission(spank_t spank) {
  if (asked_gpus[0] == '\0') {
    if (asked_memory[0] == '\0' && asked_class[0] == '\0') return 0;
    slurm_error("gpuwire: --gpuwire-mem and --gpuwire-class go with --gpuwire=N");
    return -1;
  }
  if (notify_controller(spank, "GPUWIRE_GPUS", asked_gpus) || notify_controller(spank, "GPUWIRE_MEM", asked_memory) ||
      notify_controller(spank, "GPUWIRE_CLASS", asked_class))
    return -1;
  return 0;
}

/* --- where they run ----------------------------------------------------------------------------------------- */

static const char* run_directory(int count, char** arguments) {
  static const char kName[] = "run_directory=";
  for (int i = 0; i < count; ++i)
    if (strncmp(arguments[i], kName, sizeof kName - 1) == 0) return arguments[i] + sizeof kName - 1;
  return kDefaultRunDirectory;
}

static int set(spank_t spank, const char* name, const char* value) {
  spank_err_t error = spank_setenv(spank, name, value, 1);
  if (error != ESPANK_SUCCESS) slurm_error("gpuwire: cannot set %s: %s", name, spank_strerror(error));
  return error == ESPANK_SUCCESS ? 0 : -1;
}

/* Whether a list with colons has this entry. */
static int has_entry(const char* list, const char* entry) {
  size_t bytes = strlen(entry);
  for (const char* at = list; (at = strstr(at, entry)) != NULL; ++at)
    if ((at == list || at[-1] == ':') && (at[bytes] == '\0' || at[bytes] == ':')) return 1;
  return 0;
}

/* Adds the entry at the beginning or the end of the job's list, or of `otherwise` if the job has none, unless the list
 * has it already. */
static int extend(spank_t spank, const char* name, const char* entry, const char* otherwise, int at_end) {
  char *before = malloc(kVariableBytesMax), *after = malloc(2 * kVariableBytesMax);
  int result = -1;
  if (before == NULL || after == NULL) goto done;
  if (spank_getenv(spank, name, before, kVariableBytesMax) != ESPANK_SUCCESS || before[0] == '\0')
    snprintf(before, kVariableBytesMax, "%s", otherwise);
  result = 0;
  if (has_entry(before, entry)) goto done;
  if (before[0] == '\0') snprintf(after, 2 * kVariableBytesMax, "%s", entry);
  else snprintf(after, 2 * kVariableBytesMax, "%s:%s", at_end ? before : entry, at_end ? entry : before);
  result = set(spank, name, after);
done:
  free(before);
  free(after);
  return result;
}

/* One line of the file: "set NAME VALUE", "unset NAME", "prepend NAME ENTRY OTHERWISE" or "append NAME ENTRY
 * OTHERWISE", with tabs between. */
static int apply(spank_t spank, char* line) {
  char* words[4] = {"", "", "", ""};
  for (int i = 0; i < 4 && line != NULL; ++i) words[i] = strsep(&line, "\t");
  if (strcmp(words[0], "set") == 0) return set(spank, words[1], words[2]);
  if (strcmp(words[0], "prepend") == 0) return extend(spank, words[1], words[2], words[3], 0);
  if (strcmp(words[0], "append") == 0) return extend(spank, words[1], words[2], words[3], 1);
  if (strcmp(words[0], "unset") == 0) {
    spank_unsetenv(spank, words[1]);
    return 0;
  }
  slurm_error("gpuwire: \"%s\" in a job's environment file: prolog and plugin are not of one release", words[0]);
  return -1;
}

/* The prolog writes to this file why the job has no GPU. */
static int print_reason(const char* folder) {
  char path[PATH_MAX], reason[kReasonBytesMax];
  snprintf(path, sizeof path, "%s/error", folder);
  FILE* file = fopen(path, "re");
  if (file == NULL) return 0;
  if (fgets(reason, sizeof reason, file) == NULL) reason[0] = '\0';
  fclose(file);
  reason[strcspn(reason, "\n")] = '\0';
  slurm_error("gpuwire: %s", reason[0] ? reason : "the prolog of this job failed");
  return 1;
}

/* Sets the step's part of the job's GPUs: all of them, or as many as it asks for. */
static int set_gpus(spank_t spank, const char* job_gpus) {
  unsigned of_job = gpuwire_gpus(job_gpus), of_step = asked_gpus[0] ? gpuwire_gpus(asked_gpus) : of_job;
  char number[16], devices[kGpuwireGpusMax * 5] = "";
  if (of_step == 0 || of_step > of_job) {
    slurm_error("gpuwire: the step asks for %s GPUs, and the job has %s", asked_gpus, job_gpus);
    return -1;
  }
  size_t used = 0;
  for (unsigned i = 0; i < of_step; ++i)
    used += (size_t)snprintf(devices + used, sizeof devices - used, i ? ",%u" : "%u", i);
  snprintf(number, sizeof number, "%u", of_step);
  if (set(spank, "GPUWIRE_GPUS", number) || set(spank, "SLURM_GPUS", number) ||
      set(spank, "SLURM_GPUS_ON_NODE", number))
    return -1;
  return set(spank, "CUDA_VISIBLE_DEVICES", devices) || set(spank, "GPU_DEVICE_ORDINAL", devices) ? -1 : 0;
}

/* The job's memory is divided among the tasks of the step, on whichever nodes they are: they share its GPUs, as the
 * tasks of a job share the GPUs and the memory (--mem) that Slurm gives it on a node. */
static int set_memory(spank_t spank, const char* of_job) {
  uint32_t tasks = 0, step = 0;
  char text[32];
  uint64_t bytes = gpuwire_memory_bytes(of_job);
  if (bytes == 0) {
    slurm_error("gpuwire: \"%.32s\" in a job's environment file is not a size", of_job);
    return -1;
  }
  /* A batch script is one task, however many its steps may have. */
  if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step == SLURM_BATCH_SCRIPT ||
      spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS || tasks == 0)
    tasks = 1;
  snprintf(text, sizeof text, "%lluB", (unsigned long long)(bytes / tasks));
  return set(spank, "GPUWIRE_MEMORY", text);
}

static int prepare_tasks(spank_t spank, int count, char** arguments) {
  char folder[PATH_MAX - 32], path[PATH_MAX], line[kLineBytesMax], gpus[16] = "", memory[32] = "";
  static const char kMemory[] = "set\tGPUWIRE_MEMORY\t";
  uint32_t job = 0;
  if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS) return 0;
  if (snprintf(folder, sizeof folder, "%s/%u", run_directory(count, arguments), job) >= (int)sizeof folder) return -1;
  if (print_reason(folder)) return -1;
  snprintf(path, sizeof path, "%s/environment", folder);
  FILE* file = fopen(path, "re");
  if (file == NULL && asked_gpus[0] == '\0') return 0; /* a job without gpuwire */
  if (file == NULL) {
    slurm_error(
        "gpuwire: the job has no GPUs: --gpuwire belongs to the job (sbatch, salloc), and Prolog in slurm.conf has to "
        "run gpuwire's");
    return -1;
  }
  int result = 0;
  while (result == 0 && fgets(line, sizeof line, file) != NULL) {
    size_t end = strcspn(line, "\n");
    if (line[end] != '\n') {
      slurm_error("gpuwire: %s has a line that is too long", path);
      result = -1;
      break;
    }
    line[end] = '\0';
    if (strncmp(line, "gpus\t", 5) == 0) snprintf(gpus, sizeof gpus, "%.*s", (int)sizeof gpus - 1, line + 5);
    else if (strncmp(line, kMemory, sizeof kMemory - 1) == 0)
      snprintf(memory, sizeof memory, "%.*s", (int)sizeof memory - 1, line + sizeof kMemory - 1);
    else result = apply(spank, line);
  }
  fclose(file);
  if (result == 0) result = set_gpus(spank, gpus);
  if (asked_memory[0] != '\0') strcpy(memory, asked_memory);
  if (result == 0 && memory[0] != '\0') result = set_memory(spank, memory);
  return result;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char** arguments) {
  (void)count, (void)arguments;
  spank_context_t context = spank_context();
  return context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR ? prepare_submission(spank) : 0;
}

/* Called in each task, as the job's user, before the program is started: messages go to the user, and a task without
 * GPUs ends with an error. */
int slurm_spank_task_init(spank_t spank, int count, char** arguments) { return prepare_tasks(spank, count, arguments); }
