/* The library of the agent: a fork, an agent that is killed, one that cannot be started. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "penstock.h"

#define CHECK(x) do { if (!(x)) { printf("%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #x, e.code, e.text); exit(1); } } while (0)
#define REFUSED(x, want, part) do { memset(&e, 0, sizeof e); (void)(x); if (e.code != (want) || !strstr(e.text, part)) { printf("%s:%d: %s: %d (%s), expected %d (%s)\n", __FILE__, __LINE__, #x, e.code, e.text, (want), part); exit(1); } } while (0)

/* The agent that was started last: the command that starts it, argv[1], writes its number to the file argv[2]. */
static int agent(const char *name)
{
	int pid = 0;
	FILE *f = fopen(name, "r");
	if (f) {
		if (fscanf(f, "%d", &pid) != 1)
			pid = 0;
		fclose(f);
	}
	return pid;
}

int main(int argc, char **argv)
{
	penstock_error e = {0};
	REFUSED(penstock_status(1, NULL, 0, &e), PENSTOCK_INVALID, "not open here");

	CHECK(argc == 3);
	setenv("PENSTOCK_COMMAND", "/nonexistent/penstock", 1);
	REFUSED(penstock_alloc("", 1, 0, &e), PENSTOCK_MISSING, "/nonexistent/penstock");
	setenv("PENSTOCK_COMMAND", "/bin/false", 1);
	REFUSED(penstock_alloc("", 1, 0, &e), PENSTOCK_LOST, "ended before it answered");
	setenv("PENSTOCK_AGENT", "/nonexistent/socket", 1);
	REFUSED(penstock_alloc("", 1, 0, &e), PENSTOCK_MISSING, "/nonexistent/socket");
	unsetenv("PENSTOCK_AGENT"); /* which is for another agent */
	setenv("PENSTOCK_COMMAND", argv[1], 1);

	penstock_handle s = penstock_open("penstock: {transfers: {name: a}}", &e);
	penstock_handle r = penstock_alloc("memory", 4096, 0, &e);
	CHECK(s && r);
	unsigned char *bytes = penstock_memory(r, NULL, &e);
	CHECK(bytes);
	bytes[0] = 7;
	CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD); /* it is no child of the program */

	int pid = agent(argv[2]); /* before the child has one */

	/* A fork: its agent is its own, the memory is still there. */
	int child = fork();
	if (child == 0) {
		REFUSED(penstock_status(s, NULL, 0, &e), PENSTOCK_INVALID, "fork");
		REFUSED(penstock_close(r, &e), PENSTOCK_INVALID, "fork");
		penstock_handle own = penstock_alloc("own", 4096, 0, &e);
		CHECK(own && own != r && bytes[0] == 7);
		REFUSED(penstock_memory(r, NULL, &e), PENSTOCK_INVALID, "fork");
		bytes[0] = 8;
		CHECK(penstock_close(own, &e) == 0);
		exit(0);
	}
	int status = -1;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(bytes[0] == 8 && penstock_status(s, NULL, 0, &e) > 0);

	/* An agent that is killed: every call says so, the event descriptor wakes, memory stays, and the next open starts another one. */
	struct pollfd p = {penstock_event_fd(s, &e), POLLIN, 0};
	CHECK(p.fd >= 0 && poll(&p, 1, 0) == 0);
	CHECK(pid > 0 && kill(pid, SIGKILL) == 0);
	CHECK(poll(&p, 1, 10000) == 1);
	REFUSED(penstock_ended(s, NULL, 0, &e), PENSTOCK_LOST, "has ended");
	REFUSED(penstock_receive(s, &(penstock_message){0}, NULL, 0, -1, &e), PENSTOCK_LOST, "has ended");
	bytes[1] = 9;
	penstock_handle again = penstock_open("penstock: {transfers: {name: a}}", &e);
	CHECK(again && again != s && penstock_status(again, NULL, 0, &e) > 0);
	REFUSED(penstock_status(s, NULL, 0, &e), PENSTOCK_LOST, "has ended");
	REFUSED(penstock_close(r, &e), PENSTOCK_LOST, "has ended");
	CHECK(penstock_close(again, &e) == 0);
	puts("ok");
	return 0;
}
