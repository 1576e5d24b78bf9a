/* feedrack-affinity: says that a job is about to start, and on which nodes.
 *
 * slurmctld runs this as PrologSlurmctld: a failure of it requeues the job, and while it hangs the
 * job waits. So it ends with 0 within two seconds whatever happens; the work is done by a child,
 * since no signal ends a process that waits for a disk. What cannot be written is left unsaid: the
 * job's data are not warmed. It writes one file, JOBID, into a folder fixed when it was built, of
 * two lines: the job's id and its nodes, as Slurm writes them. To the daemon its name says all.
 * Of what the job's user may choose, nothing is read.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef FEEDRACK_MARKER
#define FEEDRACK_MARKER "feedrack-affinity 0"
#endif
#ifndef FEEDRACK_REQUESTS
#error "FEEDRACK_REQUESTS is the folder that the daemon reads"
#endif

/* Found in the built file by the installer: whose it is, and where it writes. */
extern const char feedrack_marker[];
extern const char feedrack_requests[];
const char feedrack_marker[] = "feedrack-marker " FEEDRACK_MARKER;
const char feedrack_requests[] = "feedrack-requests " FEEDRACK_REQUESTS;

enum {
    CHILD_SECONDS_MOST = 1,
    SECONDS_MOST = 2,
    ID_DIGITS = 20,
    NODES_BYTES = 64 * 1024,
    /* The daemon removes what it has read; where it is away for long, the folder stays small. */
    WAITING_MOST = 10000,
};

static volatile sig_atomic_t child = -1;
static int folder = -1;
static char name[ID_DIGITS + 1];
static char unfinished[ID_DIGITS + 2];

static void leave_child(int number)
{
    (void)number;
    if (child > 0)
        (void)kill((pid_t)child, SIGKILL);
    _exit(0);
}

static void give_up(int number)
{
    (void)number;
    if (folder >= 0 && *unfinished != '\0')
        (void)unlinkat(folder, unfinished, 0);
    _exit(0);
}

/* A job id is digits alone, and so a plain file name: no `..`, no `/`, no hidden file. */
static int is_id(const char *text)
{
    const size_t digits = strspn(text, "0123456789");

    return digits >= 1 && digits <= ID_DIGITS && text[digits] == '\0';
}

/* Bytes that a nodes' line cannot have: they would end it, or are in no host's name. */
static int is_line(const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes; at++)
        if (text[at] <= ' ' || text[at] > '~')
            return 0;
    return bytes > 0 && bytes <= NODES_BYTES;
}

/* The folder, if it is one of ours that no one else can write into; else -1. */
static int open_folder(void)
{
    struct stat found;
    const int opened = open(FEEDRACK_REQUESTS, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (opened < 0)
        return -1;
    if (fstat(opened, &found) != 0 || found.st_uid != geteuid() ||
        (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        close(opened);
        return -1;
    }
    return opened;
}

static int has_room(void)
{
    int waiting = 0;
    const int again = dup(folder);
    DIR *entries = again < 0 ? NULL : fdopendir(again);

    if (entries == NULL)
        return 0;
    while (waiting <= WAITING_MOST && readdir(entries) != NULL)
        waiting++;
    closedir(entries);
    return waiting <= WAITING_MOST;
}

static int write_all(int file, const char *text, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t written = write(file, text, bytes);

        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return 0;
        text += written;
        bytes -= (size_t)written;
    }
    return 1;
}

static void leave_request(const char *job, const char *nodes)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    const size_t bytes = strnlen(nodes, NODES_BYTES + 1);
    int file;
    int whole;

    if (!is_id(job) || !is_line(nodes, bytes))
        return;
    folder = open_folder();
    if (folder < 0 || !has_room())
        return;
    (void)snprintf(name, sizeof name, "%s", job);
    (void)snprintf(unfinished, sizeof unfinished, ".%s", job);
    file = openat(folder, unfinished, flags, 0600);
    if (file < 0 && errno == EEXIST && unlinkat(folder, unfinished, 0) == 0)
        /* A killed run's for the same job, which was requeued. */
        file = openat(folder, unfinished, flags, 0600);
    if (file < 0)
        return;
    whole = write_all(file, name, strlen(name)) && write_all(file, "\n", 1) &&
            write_all(file, nodes, bytes) && write_all(file, "\n", 1);
    whole = close(file) == 0 && whole;
    if (!whole || renameat(folder, unfinished, folder, name) != 0)
        (void)unlinkat(folder, unfinished, 0);
}

/* Ends with `ending` after so many seconds, or when Slurm asks for it. */
static void end_within(unsigned int seconds, void (*ending)(int))
{
    struct sigaction act = {.sa_handler = ending};
    sigset_t none;

    (void)sigemptyset(&act.sa_mask);
    (void)sigaction(SIGALRM, &act, NULL);
    (void)sigaction(SIGTERM, &act, NULL);
    (void)sigaction(SIGXFSZ, &act, NULL);
    /* What the controller may have blocked is inherited. */
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)alarm(seconds);
}

int main(void)
{
    const char *job = getenv("SLURM_JOB_ID");
    const char *nodes = getenv("SLURM_JOB_NODELIST");
    pid_t forked;

    if (job == NULL || nodes == NULL)
        return 0;
    end_within(SECONDS_MOST, leave_child);
    forked = fork();
    if (forked == 0) {
        end_within(CHILD_SECONDS_MOST, give_up);
        /* The controller waits for the end of what it reads from us. */
        (void)close(STDIN_FILENO);
        (void)close(STDOUT_FILENO);
        (void)close(STDERR_FILENO);
        leave_request(job, nodes);
        _exit(0);
    }
    child = forked;
    while (forked > 0 && waitpid(forked, NULL, 0) < 0 && errno == EINTR)
        continue;
    return 0;
}
