/* feedrack-affinity: `--dataset` and `--dataset-wait` for sbatch, srun and salloc.
 *
 * Runs inside the user's own command. It looks at how the options are written, hands them to the
 * controller with the job, and names the datasets in the job's environment. It reads no file, asks
 * nothing of anybody, and allocates nothing of its own; where a call of Slurm's fails, the job
 * goes on without a hint. Built on the site, for one Slurm release, by `feedrack-affinity install`.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/spank.h>

SPANK_PLUGIN(feedrack, 1)

#ifndef FEEDRACK_MARKER
#define FEEDRACK_MARKER "feedrack-affinity 0"
#endif

#define DIGIT(number, place) ((char)('0' + (number) / (place) % 10))
#define TWO_DIGITS(number) DIGIT(number, 10), DIGIT(number, 1)

/* Found in the built file by the installer: whose it is, and the Slurm release that loads it. */
extern const char feedrack_marker[];
extern const char feedrack_built_for[];
const char feedrack_marker[] = "feedrack-marker " FEEDRACK_MARKER;
const char feedrack_built_for[] = {
    'f', 'e', 'e', 'd', 'r', 'a', 'c', 'k', '-', 'b', 'u', 'i', 'l', 't', '-', 'f', 'o', 'r', ' ',
    TWO_DIGITS(SLURM_VERSION_MAJOR(SLURM_VERSION_NUMBER)), '.',
    TWO_DIGITS(SLURM_VERSION_MINOR(SLURM_VERSION_NUMBER)), '.',
    TWO_DIGITS(SLURM_VERSION_MICRO(SLURM_VERSION_NUMBER)), '\0',
};

enum { HINT_BYTES = 512, DATASETS_MOST = 8, BUCKET_BYTES_LEAST = 3, BUCKET_BYTES = 63 };
enum { MINUTES_MOST = 100000, MINUTES_DIGITS = 6 };
enum { DATASET, DATASET_WAIT };

static char hint[HINT_BYTES + 1];
static char wait_minutes[MINUTES_DIGITS + 1];

/* Bytes that no hint has: they would end it, split it, or mean something to who reads it next. */
static int forbidden(unsigned char byte)
{
    return byte <= ' ' || byte == 0x7f || byte == '"' || byte == '\'' || byte == '\\';
}

/* The length of the bucket's name that `text` begins with; 0 if it is none. */
static size_t bucket_bytes(const char *text)
{
    const size_t bytes = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789.-");

    if (bytes < BUCKET_BYTES_LEAST || bytes > BUCKET_BYTES || *text == '.' || *text == '-' ||
        text[bytes - 1] == '.' || text[bytes - 1] == '-')
        return 0;
    return bytes;
}

/* What is wrong with a hint, in words for its user; NULL if it is one. The rules are those of
 * scheduler_plugin/dataset.py and job_submit.lua, but that a dataset named twice counts twice. */
static const char *wrong_with_hint(const char *text)
{
    static const char scheme[] = "s3://";
    const size_t scheme_bytes = sizeof scheme - 1;
    const char *at = text;

    if (text == NULL || *text == '\0')
        return "it names no dataset; say --dataset=s3://bucket/prefix";
    if (strnlen(text, HINT_BYTES + 1) > HINT_BYTES)
        return "it is longer than 512 bytes";
    for (const char *each = text; *each != '\0'; each++)
        if (forbidden((unsigned char)*each))
            return "it has a space, a quote, a backslash or a control character in it";
    for (int count = 1; count <= DATASETS_MOST; count++) {
        size_t bytes;

        if (strncmp(at, scheme, scheme_bytes) != 0)
            return "each dataset is named s3://bucket/prefix, with a comma between two";
        at += scheme_bytes;
        bytes = bucket_bytes(at);
        if (bytes == 0 || strchr("/,", at[bytes]) == NULL)
            return "what comes after s3:// can be no bucket's name";
        at = strchr(at, ',');
        if (at == NULL)
            return NULL;
        at++;
    }
    return "it names more than 8 datasets";
}

static const char *wrong_with_minutes(const char *text)
{
    static const char wanted[] = "it is a whole number of minutes, from 1 to 100000";
    int minutes = 0;

    if (text == NULL || *text == '\0')
        return wanted;
    for (const char *at = text; *at != '\0'; at++) {
        if (*at < '0' || *at > '9' || at - text >= MINUTES_DIGITS)
            return wanted;
        minutes = minutes * 10 + (*at - '0');
    }
    return minutes >= 1 && minutes <= MINUTES_MOST ? NULL : wanted;
}

/* Slurm's callback for an option as typed, and on the node (`remote`) for one that came along. */
static int take(int which, const char *text, int remote)
{
    const char *wrong = which == DATASET ? wrong_with_hint(text) : wrong_with_minutes(text);

    if (wrong != NULL) {
        /* A job that is already running is not to fail for what it says of its data. */
        if (remote)
            return 0;
        slurm_error("feedrack: --%s: %s", which == DATASET ? "dataset" : "dataset-wait", wrong);
        return -1;
    }
    if (which == DATASET)
        memcpy(hint, text, strlen(text) + 1);
    else
        memcpy(wait_minutes, text, strlen(text) + 1);
    return 0;
}

static struct spank_option dataset_option = {
    .name = "dataset",
    .arginfo = "s3://bucket/prefix[,...]",
    .usage = "start near this data if that costs no wait (feedrack)",
    .has_arg = 1,
    .val = DATASET,
    .cb = take,
};

static struct spank_option wait_option = {
    .name = "dataset-wait",
    .arginfo = "minutes",
    .usage = "wait for a place near the data, at most so long (feedrack)",
    .has_arg = 1,
    .val = DATASET_WAIT,
    .cb = take,
};

int slurm_spank_init(spank_t spank, int argc, char *argv[])
{
    const spank_context_t context = spank_context();

    (void)argc;
    (void)argv;
    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
        return 0;
    /* Without them Slurm knows no such option, which only who types one gets to see. */
    if (spank_option_register(spank, &dataset_option) != ESPANK_SUCCESS ||
        spank_option_register(spank, &wait_option) != ESPANK_SUCCESS)
        slurm_debug("feedrack: Slurm did not take an option");
    return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char *argv[])
{
    const spank_context_t context = spank_context();

    (void)argc;
    (void)argv;
    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR)
        return 0;
    if (*hint != '\0' &&
        (spank_job_control_setenv(spank, "FEEDRACK_DATASET", hint, 1) != ESPANK_SUCCESS ||
         setenv("FEEDRACK_DATASET", hint, 1) != 0))
        slurm_debug("feedrack: the dataset is not in the environment");
    if (*wait_minutes != '\0' &&
        spank_job_control_setenv(spank, "FEEDRACK_DATASET_WAIT", wait_minutes, 1) !=
            ESPANK_SUCCESS)
        slurm_debug("feedrack: the wait is not in the environment");
    return 0;
}

/* On a node that has the plugin too: for jobs that bring no environment along (--export=NONE).
 * A batch script's options come in its environment alone, and Slurm calls no `take` for them. */
int slurm_spank_user_init(spank_t spank, int argc, char *argv[])
{
    (void)argc;
    (void)argv;
    if (*hint == '\0' &&
        spank_getenv(spank, "SLURM_SPANK_FEEDRACK_DATASET", hint, sizeof hint) != ESPANK_SUCCESS)
        return 0;
    /* What the script itself has put there stands. */
    (void)spank_setenv(spank, "FEEDRACK_DATASET", hint, 0);
    return 0;
}
