/* Job submit plugin, in slurmctld: a job that asks for GPUs by --gpuwire needs as many of Slurm's licences "gpuwire",
 * so that it waits in Slurm's queue while all are taken.
 *
 * The job's options arrive as variables for prolog and epilog (spank_gpuwire.c), which any user can write. So only the
 * job's licences are trusted: the prolog reads them from the controller. `scontrol show job` shows the GPUs under
 * Licenses and TRES, and as a text in AdminComment. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#include "gpus.h"

const char plugin_name[] = "Licences for gpuwire's GPUs";
const char plugin_type[] = "job_submit/gpuwire";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

/* slurmctld frees the texts of a request with its own allocator. */
extern char* slurm_xstrdup(const char* text);
extern void slurm_xfree_ptr(void* memory);

enum { kTextBytesMax = 256 };

static const char kLicence[] = "gpuwire";

static const char* variable(const job_desc_msg_t* job, const char* name) {
  size_t bytes = strlen(name);
  for (uint32_t i = 0; i < job->spank_job_env_size; ++i) {
    const char* entry = job->spank_job_env[i];
    if (strncmp(entry, "SPANK_", 6) == 0) entry += 6;
    if (strncmp(entry, name, bytes) == 0 && entry[bytes] == '=') return entry + bytes + 1;
  }
  return NULL;
}

/* Whether a list such as "a:1,gpuwire:2" has the licence of gpuwire. */
static int has_licence(const char* licences) {
  size_t bytes = sizeof kLicence - 1;
  for (const char* at = licences; at != NULL && *at != '\0';) {
    if (strncmp(at, kLicence, bytes) == 0 && strchr(":=,;", at[bytes]) != NULL) return 1;
    at += strcspn(at, ",;");
    if (*at != '\0') ++at;
  }
  return 0;
}

static void replace(char** text, const char* by) {
  slurm_xfree_ptr(*text);
  *text = slurm_xstrdup(by);
}

static int refuse(char** message, const char* why) {
  if (message != NULL) *message = slurm_xstrdup(why);
  return ESLURM_INVALID_LICENSES;
}

int init(void) { return SLURM_SUCCESS; }
void fini(void) {}

int job_submit(job_desc_msg_t* job, uint32_t submitter, char** message) {
  (void)submitter;
  const char *gpus = variable(job, "GPUWIRE_GPUS"), *memory = variable(job, "GPUWIRE_MEM"),
             *class = variable(job, "GPUWIRE_CLASS");
  if (gpus == NULL) {
    if (!has_licence(job->licenses)) return SLURM_SUCCESS;
    return refuse(message, "gpuwire: --gpuwire=N asks for the licence, too; it is of no use alone");
  }
  unsigned number = gpuwire_gpus(gpus);
  if (number == 0) return refuse(message, "gpuwire: --gpuwire must be a number of GPUs");
  if (has_licence(job->licenses))
    return refuse(message, "gpuwire: --gpuwire=N asks for the licence; leave it out of --licenses");

  size_t bytes = (job->licenses != NULL ? strlen(job->licenses) : 0) + kTextBytesMax;
  char* licences = malloc(bytes);
  if (licences == NULL) return ESLURM_INTERNAL;
  int others = job->licenses != NULL && job->licenses[0] != '\0';
  snprintf(licences, bytes, "%s%s%s:%u", others ? job->licenses : "", others ? "," : "", kLicence, number);
  replace(&job->licenses, licences);
  free(licences);

  char comment[kTextBytesMax];
  snprintf(comment, sizeof comment, "gpuwire: %u GPU%s%s%.40s%s%s%.64s", number, number == 1 ? "" : "s",
           memory ? ", " : "", memory ? memory : "", memory ? " on each" : "", class ? ", class " : "",
           class ? class : "");
  if (job->admin_comment == NULL) job->admin_comment = slurm_xstrdup(comment);
  return SLURM_SUCCESS;
}

int job_modify(job_desc_msg_t* job, void* record, uint32_t submitter) {
  (void)job, (void)record, (void)submitter;
  return SLURM_SUCCESS;
}
