/* How the agent is started. It is nobody's child: a program that waits for its children does not see it, and it ends when the socket closes. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "client.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 64 << 10, AGENT_FD = 3 };

typedef struct {
	const char *command;
	int fd;
	sigset_t mask;
	char *stack; /* of the second process */
	int failed;  /* errno */
} starting;

/* _exit without what sanitizers do there, in memory that is still the program's. */
static void quit(void) { syscall(SYS_exit_group, 1); }

/* Runs in the memory of the program, whose thread waits, with all signals blocked. */
static int second(void *x)
{
	starting *s = x;
	setpgid(0, 0); /* what a terminal sends to the program is not for the agent */
	int null = open("/dev/null", O_RDONLY);
	if (null >= 0)
		dup2(null, 0);
	if (s->fd == AGENT_FD ? fcntl(s->fd, F_SETFD, 0) < 0 : dup2(s->fd, AGENT_FD) < 0) {
		s->failed = errno;
		quit();
	}
	sigprocmask(SIG_SETMASK, &s->mask, NULL);
	char *const arguments[] = {"penstock", "agent", "--fd", "3", NULL};
	execvp(s->command, arguments);
	s->failed = errno;
	quit();
	return 1;
}

static int first(void *x)
{
	starting *s = x;
	if (clone(second, s->stack + STACK, CLONE_VM | CLONE_VFORK, s) < 0)
		s->failed = errno;
	quit();
	return 1;
}

/* The command: of $PENSTOCK_COMMAND, beside this library, or in $PATH. */
static const char *command(char *room, size_t n)
{
	const char *given = secure_getenv("PENSTOCK_COMMAND");
	if (given && *given)
		return given;
	Dl_info here;
	if (dladdr((void *)agent_socket, &here) && here.dli_fname) {
		const char *slash = strrchr(here.dli_fname, '/');
		if (slash && (size_t)snprintf(room, n, "%.*s/penstock", (int)(slash - here.dli_fname), here.dli_fname) < n && access(room, X_OK) == 0)
			return room;
	}
	return "penstock";
}

static int start(penstock_error *out)
{
	int pair[2];
	char room[4096];
	starting s = {.command = command(room, sizeof room)};
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return fail(out, PENSTOCK_OTHER, "a socket for the agent: %s", strerror(errno)), -1;
	char *stacks = malloc(2 * STACK);
	if (!stacks) {
		close(pair[0]);
		close(pair[1]);
		return fail(out, PENSTOCK_OTHER, "no memory to start the agent"), -1;
	}
	s.fd = pair[1];
	s.stack = stacks + STACK;
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &s.mask);
	int pid = clone(first, stacks + STACK, CLONE_VM | CLONE_VFORK, &s); /* no signal at its end */
	if (pid < 0)
		s.failed = errno;
	while (pid > 0 && waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
		;
	pthread_sigmask(SIG_SETMASK, &s.mask, NULL);
	free(stacks);
	close(pair[1]);
	if (!s.failed)
		return pair[0];
	close(pair[0]);
	fail(out, PENSTOCK_MISSING, "the agent cannot be started: %s: %s; set PENSTOCK_COMMAND to the program penstock, or put it beside the library or into PATH", s.command, strerror(s.failed));
	return -1;
}

int agent_socket(penstock_error *out)
{
	const char *path = secure_getenv("PENSTOCK_AGENT");
	if (!path || !strchr(path, '/'))
		return start(out);
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof a.sun_path)
		return fail(out, PENSTOCK_INVALID, "PENSTOCK_AGENT is %zu bytes long: expected the path of a socket, of %zu at most", strlen(path), sizeof a.sun_path - 1), -1;
	strcpy(a.sun_path, path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return fail(out, PENSTOCK_OTHER, "a socket for the agent: %s", strerror(errno)), -1;
	if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
		fail(out, PENSTOCK_MISSING, "no agent at %s, which PENSTOCK_AGENT names: %s; start one by penstock agent --socket", path, strerror(errno));
		close(fd);
		return -1;
	}
	struct ucred who;
	socklen_t n = sizeof who;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) < 0 || who.uid != geteuid()) {
		close(fd);
		return fail(out, PENSTOCK_RIGHTS, "the agent at %s is not of this user", path), -1;
	}
	return fd;
}
