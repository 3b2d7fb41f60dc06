// xdpref is what a careful programmer writes in C with libxdp: the reference that Penstock's AF_XDP is measured against, and the
// load and the sink at the other end of both.
//
//	xdpref OPTION=VALUE...
//
// if=NAME (once or twice), queue, cpu, size (bytes of a frame), batch, chunk, slots (chunks to receive into, and as many to send from),
// ring (descriptors of each ring), budget (packets of one system call), and 0 or 1 for poll, wakeup, sg, generic, zero, copy, huge,
// prefetch, fill (make the frames to send), libxdp_prog.
//
// It prints a line of JSON when it is ready, and one for each line that it reads:
//
//	send if=0 packets=N ms=N touch=0 check=0   until so many packets, or so long; stop ends it early
//	recv if=0 live=0 touch=0 check=0 brief=0 packets=0  what is in the ring; live: until stop or so many packets, and then the same
//	fwd  if=0 to=1 live=0 touch=0              the same, and sends it
//	stop
//
// It ends with its input.
#include "xdpref.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct options opt = {.cpu = -1, .size = 64, .batch = 64, .chunk = 2048, .slots = 4096, .ring = 4096, .budget = 256, .wakeup = true, .copy = true, .fill = true};
char *area;
volatile bool stopping;

void fail(const char *fmt, ...)
{
	va_list a;
	va_start(a, fmt);
	fputs("xdpref: ", stderr);
	vfprintf(stderr, fmt, a);
	fputc('\n', stderr);
	exit(1);
}

int64_t now(int clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static uint64_t number(const char *key, const char *s, uint64_t max)
{
	char *end;
	errno = 0;
	uint64_t v = strtoull(s, &end, 10);
	if (*s < '0' || *s > '9' || *end || errno || v > max)
		fail("%s=%s: expected a number up to %lu", key, s, (unsigned long)max);
	return v;
}

static void option(char *arg)
{
	static const struct {
		const char *key;
		bool *flag;
		uint32_t *value;
		uint32_t max;
	} table[] = {
		{"size", 0, &opt.size, MAX_FRAME}, {"batch", 0, &opt.batch, 4096}, {"chunk", 0, &opt.chunk, 4096}, {"slots", 0, &opt.slots, 1 << 20},
		{"ring", 0, &opt.ring, 1 << 20}, {"budget", 0, &opt.budget, 1 << 16}, {"poll", &opt.poll}, {"wakeup", &opt.wakeup}, {"sg", &opt.sg},
		{"generic", &opt.generic}, {"zero", &opt.zero}, {"copy", &opt.copy}, {"huge", &opt.huge}, {"prefetch", &opt.prefetch}, {"fill", &opt.fill},
		{"libxdp_prog", &opt.default_prog},
	};
	char *value = strchr(arg, '=');
	if (!value)
		fail("%s: expected OPTION=VALUE", arg);
	*value++ = 0;
	if (!strcmp(arg, "if")) {
		if (opt.ports == MAX_PORTS)
			fail("more than %d interfaces", MAX_PORTS);
		opt.ifname[opt.ports++] = value;
		return;
	}
	if (!strcmp(arg, "queue")) {
		opt.queue = number(arg, value, 63);
		return;
	}
	if (!strcmp(arg, "cpu")) {
		opt.cpu = number(arg, value, 4095);
		return;
	}
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (!strcmp(arg, table[i].key)) {
			if (table[i].flag)
				*table[i].flag = number(arg, value, 1);
			else
				*table[i].value = number(arg, value, table[i].max);
			return;
		}
	fail("%s: no such option", arg);
}

static void check_options(void)
{
	if (!opt.ports)
		fail("if=NAME is missing");
	if (opt.size < MIN_FRAME)
		fail("size=%u: expected at least %d", opt.size, MIN_FRAME);
	if (opt.chunk != 2048 && opt.chunk != 4096)
		fail("chunk=%u: expected 2048 or 4096", opt.chunk);
	if (!opt.ring || opt.ring & (opt.ring - 1))
		fail("ring=%u: expected a power of two", opt.ring);
	if (!opt.batch || !opt.slots || opt.slots > opt.ring || opt.batch > opt.ring)
		fail("slots=%u batch=%u: expected 1 to %u, the descriptors of a ring", opt.slots, opt.batch, opt.ring);
	if (opt.size > opt.chunk - 256 && !opt.sg)
		fail("size=%u: a chunk of %u has room for %u; more takes sg=1", opt.size, opt.chunk, opt.chunk - 256);
	if ((opt.size + opt.chunk - 1) / opt.chunk > opt.slots)
		fail("slots=%u: too few for one packet of %u", opt.slots, opt.size);
	if (opt.zero && opt.copy)
		fail("zero=1 and copy=1 exclude each other");
}

// Commands come by a thread that sleeps in read, so that stop reaches a loop that does not.
static struct {
	pthread_mutex_t lock;
	pthread_cond_t come;
	char line[256];
	bool full, end;
} inbox = {.lock = PTHREAD_MUTEX_INITIALIZER, .come = PTHREAD_COND_INITIALIZER};

static void *reader(void *unused)
{
	char line[sizeof inbox.line];
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "stop")) {
			stopping = true;
			continue;
		}
		pthread_mutex_lock(&inbox.lock);
		while (inbox.full)
			pthread_cond_wait(&inbox.come, &inbox.lock);
		memcpy(inbox.line, line, sizeof line);
		inbox.full = true;
		stopping = false;
		pthread_cond_broadcast(&inbox.come);
		pthread_mutex_unlock(&inbox.lock);
	}
	stopping = true;
	pthread_mutex_lock(&inbox.lock);
	inbox.end = true;
	pthread_cond_broadcast(&inbox.come);
	pthread_mutex_unlock(&inbox.lock);
	return unused;
}

static bool next_command(char *line)
{
	pthread_mutex_lock(&inbox.lock);
	while (!inbox.full && !inbox.end)
		pthread_cond_wait(&inbox.come, &inbox.lock);
	bool got = inbox.full;
	memcpy(line, inbox.line, sizeof inbox.line);
	inbox.full = false;
	pthread_cond_broadcast(&inbox.come);
	pthread_mutex_unlock(&inbox.lock);
	return got;
}

static void report(const char *op, const struct work *w, struct port *from, struct port *to)
{
	struct xdp_statistics s, t = {0};
	port_stats(from, &s);
	if (to != from)
		port_stats(to, &t);
#define SINCE(field) (unsigned long)(s.field - from->before.field + (to != from ? t.field - to->before.field : 0))
	printf("{\"op\":\"%s\",\"packets\":%lu,\"bytes\":%lu,\"descs\":%lu,\"ns\":%ld,\"cpu_ns\":%ld,\"matched\":%lu,\"checked\":%lu,\"bad\":%lu,"
	       "\"gaps\":%lu,\"other\":%lu,\"calls\":%lu,\"rx_dropped\":%lu,\"rx_ring_full\":%lu,\"fill_ring_empty\":%lu,\"rx_invalid\":%lu,"
	       "\"tx_invalid\":%lu,\"tx_flight\":%lu,\"fill_chunks\":%u}\n",
	       op, (unsigned long)w->got, (unsigned long)w->bytes, (unsigned long)w->descs, (long)w->ns, (long)w->cpu, (unsigned long)w->matched,
	       (unsigned long)w->checked, (unsigned long)w->bad, (unsigned long)w->gaps, (unsigned long)w->other, (unsigned long)w->calls,
	       SINCE(rx_dropped), SINCE(rx_ring_full), SINCE(rx_fill_ring_empty_descs), SINCE(rx_invalid_descs), SINCE(tx_invalid_descs),
	       (unsigned long)to->flight, *from->fill.producer - *from->fill.consumer);
	fflush(stdout);
	from->before = s;
	if (to != from)
		to->before = t;
}

static void command(char *line, struct port *ports)
{
	struct work w = {0};
	uint64_t from = 0, to = 0, flag = 0;
	char *save = 0, *op = strtok_r(line, " ", &save);
	if (!op)
		fail("an empty command");
	for (char *arg; (arg = strtok_r(0, " ", &save));) {
		char *value = strchr(arg, '=');
		if (!value)
			fail("%s: %s: expected OPTION=VALUE", op, arg);
		*value++ = 0;
		if (!strcmp(arg, "packets"))
			w.packets = number(arg, value, 1ull << 62);
		else if (!strcmp(arg, "seq"))
			w.seq = number(arg, value, 1ull << 62);
		else if (!strcmp(arg, "ms"))
			w.ms = number(arg, value, 86400000);
		else if (!strcmp(arg, "if"))
			from = number(arg, value, opt.ports - 1);
		else if (!strcmp(arg, "to"))
			to = number(arg, value, opt.ports - 1);
		else {
			flag = number(arg, value, 1);
			if (!strcmp(arg, "live"))
				w.live = flag;
			else if (!strcmp(arg, "touch"))
				w.touch = flag;
			else if (!strcmp(arg, "check"))
				w.check = flag;
			else if (!strcmp(arg, "brief"))
				w.brief = flag;
			else
				fail("%s: %s: no such option", op, arg);
		}
	}
	struct port *p = &ports[from], *out = &ports[from];
	if (!strcmp(op, "send")) {
		do_send(p, &w);
	} else if (!strcmp(op, "recv")) {
		do_recv(p, &w);
	} else if (!strcmp(op, "fwd")) {
		out = &ports[to];
		do_forward(p, out, &w);
	} else {
		fail("%s: expected send, recv, fwd or stop", op);
	}
	report(op, &w, p, out);
}

int main(int argc, char **argv)
{
	static struct port ports[MAX_PORTS];
	char line[sizeof inbox.line];
	for (int i = 1; i < argc; i++)
		option(argv[i]);
	check_options();
	pthread_t t;
	if (pthread_create(&t, 0, reader, 0)) // before this thread is bound to a processor
		fail("no thread");
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(opt.cpu, &set);
	if (opt.cpu >= 0 && sched_setaffinity(0, sizeof set, &set))
		fail("processor %d: %s", opt.cpu, strerror(errno));
	ports_open(ports);
	if (opt.fill)
		for (int i = 0; i < opt.ports; i++) {
			uint32_t frags = (opt.size + opt.chunk - 1) / opt.chunk;
			for (uint32_t s = 0; s < opt.slots / frags; s++)
				frame_make(area + ports[i].tx_base + (uint64_t)s * frags * opt.chunk, opt.size, s);
		}
	printf("{\"op\":\"ready\",\"slots\":%u,\"chunk\":%u,\"ports\":%d}\n", opt.slots, opt.chunk, opt.ports);
	fflush(stdout);
	while (next_command(line))
		command(line, ports);
	ports_close(ports);
	return 0;
}
