/* The script: a line language that says which device to be and what goes wrong when. The Go package's comment lists its lines. */
#include "verbs_fake.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct config defaults = {
	.devices = 2,
	.memlock = UINT64_MAX,
	.max_inline = 256,
	.lottery = 88172645463325252u,
	.attr = {
		.fw_ver = "0.0.penstock-fake", .max_mr_size = 1ull << 40, .page_size_cap = 0x1000, .vendor_part_id = 0xfa4e, .max_qp = 16384,
		.max_qp_wr = 16384,
		.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_XRC |
				    IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |
				    IBV_DEVICE_MEM_MGT_EXTENSIONS,
		.max_sge = 30, .max_sge_rd = 30, .max_cq = 16384, .max_cqe = 65536, .max_mr = 1 << 18, .max_pd = 16384, .max_qp_rd_atom = 16,
		.max_res_rd_atom = 1 << 16, .max_qp_init_rd_atom = 16, .atomic_cap = IBV_ATOMIC_HCA, .max_mw = 1 << 18, .max_ah = 16384,
		.max_srq = 4096, .max_srq_wr = 16384, .max_srq_sge = 30, .max_pkeys = 1, .local_ca_ack_delay = 15, .phys_port_cnt = PORTS,
	},
};

struct config config;

enum what { FAIL, STATUS, DROP, DELAY };

struct rule {
	struct rule *next;
	enum what what;
	int subject;        /* enum call or enum side */
	uint64_t at;        /* value of its counter; 0: always */
	uint64_t value;     /* errno, status or ns */
};

static struct rule *rules;
static uint64_t counts[CALLS], sides[2];

static const char *const call_names[CALLS] = {
#define X(name) [CALL_##name] = #name,
	FAKE_CALLS(X) FAKE_COUNTS(X)
#undef X
};

static const char *const side_names[] = {[SIDE_SEND] = "send", [SIDE_RECV] = "recv", NULL};
static const char *const mode_names[] = {[MODE_POST] = "post", [MODE_WIRE] = "wire", [MODE_PUMP] = "pump", NULL};
static const char *const link_names[] = {"ethernet", "infiniband", NULL};
static const char *const timer_names[] = {"real", "instant", NULL};
static const char *const port_names[] = {"down", "up", NULL};
static const char *const partial_names[] = {"off", "on", NULL};
static const char *const cable_names[] = {"mend", "cut", NULL};
static const char *const raw_names[] = {"off", "on", NULL}; /* and of on-demand paging */
static const char *const report_names[] = {"exit", NULL};
static const char *const absent_names[] = {"dmabuf", "mw", "atomics", "srq", "xrc", "ud", "ex", "wallclock", "flows", NULL};
static const char *const cm_names[] = {"expire", "remove", "addr_change", "timewait", "odd", NULL};
static const char *const gid_types[] = {"ib", "v1", "v2", NULL};

static const char *const status_list[] = {
	"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR", "BAD_RESP_ERR",
	"LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR",
	"REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR", NULL};

struct number { const char *name; int value; };

static const struct number errnos[] = {
	{"EPERM", EPERM}, {"ENOENT", ENOENT}, {"EINTR", EINTR}, {"EIO", EIO}, {"ENXIO", ENXIO}, {"EBADF", EBADF}, {"EAGAIN", EAGAIN},
	{"ENOMEM", ENOMEM}, {"EACCES", EACCES}, {"EFAULT", EFAULT}, {"EBUSY", EBUSY}, {"ENODEV", ENODEV}, {"EINVAL", EINVAL},
	{"EMFILE", EMFILE}, {"ENOSPC", ENOSPC}, {"ENOSYS", ENOSYS}, {"EPROTONOSUPPORT", EPROTONOSUPPORT}, {"EOPNOTSUPP", EOPNOTSUPP},
	{"ETIMEDOUT", ETIMEDOUT}, {"ENOBUFS", ENOBUFS}, {"EADDRINUSE", EADDRINUSE}, {"EADDRNOTAVAIL", EADDRNOTAVAIL},
	{"ENETUNREACH", ENETUNREACH}, {"EHOSTUNREACH", EHOSTUNREACH}, {NULL, 0}};

static const struct number device_events[] = {
	{"DEVICE_FATAL", IBV_EVENT_DEVICE_FATAL}, {"LID_CHANGE", IBV_EVENT_LID_CHANGE}, {"PKEY_CHANGE", IBV_EVENT_PKEY_CHANGE},
	{"SM_CHANGE", IBV_EVENT_SM_CHANGE}, {"CLIENT_REREGISTER", IBV_EVENT_CLIENT_REREGISTER}, {"GID_CHANGE", IBV_EVENT_GID_CHANGE},
	{NULL, 0}};

#define LIMITS(X) X(max_qp) X(max_qp_wr) X(max_sge) X(max_cq) X(max_cqe) X(max_mr) X(max_pd) X(max_mw) X(max_ah) X(max_srq) \
	X(max_srq_wr) X(max_srq_sge)

static int *limit_of(struct config *c, const char *name)
{
#define X(n) if (!strcmp(name, #n)) return &c->attr.n;
	LIMITS(X)
#undef X
	return strcmp(name, "max_inline") ? NULL : &c->max_inline;
}

/* ---- counting and rules */

static void drop_rule(struct rule **p)
{
	struct rule *r = *p;
	*p = r->next;
	free(r);
}

int fake_call(enum call c)
{
	uint64_t n = ++counts[c];
	for (struct rule **p = &rules; *p; p = &(*p)->next) {
		struct rule *r = *p;
		if (r->what != FAIL || r->subject != (int)c || (r->at && r->at != n))
			continue;
		int err = (int)r->value;
		if (r->at)
			drop_rule(p);
		return err;
	}
	return 0;
}

void fake_count(enum call c, uint64_t n) { counts[c] += n; }

struct fate fake_fate(enum side side)
{
	struct fate f = {0};
	uint64_t n = ++sides[side];
	for (struct rule **p = &rules; *p;) {
		struct rule *r = *p;
		if (r->what == FAIL || r->subject != (int)side || (r->at && r->at != n)) {
			p = &r->next;
			continue;
		}
		if (r->what == STATUS)
			f.status = (enum ibv_wc_status)r->value;
		else if (r->what == DROP)
			f.drop = true;
		else
			f.delay_ns = r->value;
		if (r->at)
			drop_rule(p);
		else
			p = &r->next;
	}
	return f;
}

/* ---- parsing: every line twice, first to check, then to do */

struct parser {
	const char *p, *line;
	int lines;
	bool dry;
	struct config *c;
	char word[64];
	const char *at;      /* where word begins */
	char err[256];
};

static bool fail(struct parser *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool fail(struct parser *s, const char *fmt, ...)
{
	va_list ap;
	if (s->err[0])
		return false;
	int n = snprintf(s->err, sizeof(s->err), "line %d, column %d: ", s->lines, (int)(s->at - s->line) + 1);
	va_start(ap, fmt);
	vsnprintf(s->err + n, sizeof(s->err) - (size_t)n, fmt, ap);
	va_end(ap);
	return false;
}

/* word reads the next word of the line; false at its end. */
static bool word(struct parser *s)
{
	size_t n = 0;
	while (*s->p == ' ' || *s->p == '\t' || *s->p == '\r')
		s->p++;
	s->at = s->p;
	if (*s->p == '#')
		while (*s->p && *s->p != '\n')
			s->p++;
	while (*s->p && !isspace((unsigned char)*s->p) && *s->p != ';' && *s->p != '#') {
		if (n + 1 < sizeof(s->word))
			s->word[n++] = *s->p;
		s->p++;
	}
	s->word[n] = 0;
	return n > 0;
}

static bool need(struct parser *s, const char *what) { return word(s) || fail(s, "expected %s", what); }

static bool choice(struct parser *s, const char *const *names, const char *what, int *out)
{
	char all[200] = "";
	if (!need(s, what))
		return false;
	for (int i = 0; names[i]; i++) {
		if (!strcmp(names[i], s->word)) {
			*out = i;
			return true;
		}
		if (strlen(all) + strlen(names[i]) + 3 < sizeof(all))
			strcat(strcat(all, i ? ", " : ""), names[i]);
	}
	return fail(s, "%s \"%s\" is unknown: expected one of %s", what, s->word, all);
}

static bool named(struct parser *s, const struct number *list, const char *what, int *out)
{
	if (!need(s, what))
		return false;
	for (; list->name; list++)
		if (!strcmp(list->name, s->word)) {
			*out = list->value;
			return true;
		}
	return fail(s, "%s \"%s\" is unknown", what, s->word);
}

/* number reads an integer; units is NULL, or pairs of a suffix and its factor. */
static bool number(struct parser *s, const char *what, uint64_t min, uint64_t max, const struct number *units, uint64_t *out)
{
	char *end;
	if (!need(s, what))
		return false;
	errno = 0;
	unsigned long long v = strtoull(s->word, &end, 0);
	if (end == s->word || s->word[0] == '-' || errno)
		return fail(s, "%s \"%s\" is not a number", what, s->word);
	uint64_t f = *end || !units ? 0 : 1;
	if (!*end && !units)
		f = 1;
	for (; units && *end && units->name; units++)
		if (!strcmp(units->name, end))
			f = (uint64_t)units->value;
	if (!f)
		return fail(s, "%s \"%s\" ends with an unknown unit", what, s->word);
	if (v > max / f || v * f < min)
		return fail(s, "%s %s is out of range: expected %llu to %llu", what, s->word, (unsigned long long)min, (unsigned long long)max);
	*out = v * f;
	return true;
}

static const struct number times[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}, {NULL, 0}};
static const struct number sizes[] = {{"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {NULL, 0}};

static const struct number percent[] = {{"%", 1}, {NULL, 0}};

static bool duration(struct parser *s, uint64_t *out)
{
	return number(s, "duration", 0, 3600ull * 1000000000u, times, out) &&
	       (!isdigit((unsigned char)s->word[strlen(s->word) - 1]) || *out == 0 || fail(s, "duration \"%s\" has no unit: ns, us, ms or s", s->word));
}

/* nth reads when a rule applies: a number counted from now, or * for always. */
static bool nth(struct parser *s, uint64_t *n)
{
	const char *back = s->p;
	*n = 0;
	if (word(s) && !strcmp(s->word, "*"))
		return true;
	s->p = back;
	return number(s, "count", 1, 1ull << 40, NULL, n);
}

static bool device(struct parser *s, struct fake_device **d)
{
	uint64_t n;
	if (!number(s, "device", 0, (uint64_t)s->c->devices - 1, NULL, &n))
		return false;
	*d = &devices[n];
	return true;
}

static void add_rule(struct parser *s, enum what what, int subject, uint64_t n, uint64_t value)
{
	struct rule **p = &rules;
	if (s->dry)
		return;
	while (*p)
		p = &(*p)->next;
	struct rule *r = calloc(1, sizeof(*r));
	if (!r)
		return;
	uint64_t from = what == FAIL ? counts[subject] : sides[subject];
	*r = (struct rule){.what = what, .subject = subject, .at = n ? from + n : 0, .value = value};
	*p = r;
}

static void reset(struct parser *s)
{
	*s->c = defaults;
	if (s->dry)
		return;
	while (rules)
		drop_rule(&rules);
	memset(counts, 0, sizeof(counts));
	memset(sides, 0, sizeof(sides));
	fake_clear_violations();
	for (int i = 0; i < MAX_DEVICES; i++) {
		devices[i].port.cut = false;
		memset(devices[i].port.gid, 0, sizeof(devices[i].port.gid));
		fake_port_set(&devices[i], IBV_PORT_ACTIVE);
	}
	fake_devices_init();
}

static bool parse_gid(struct parser *s)
{
	struct fake_device *d;
	uint64_t index;
	int type;
	union ibv_gid g;
	if (!device(s, &d) || !number(s, "GID index", 0, MAX_GIDS - 1, NULL, &index) || !need(s, "GID as an IPv6 address"))
		return false;
	if (inet_pton(AF_INET6, s->word, g.raw) != 1)
		return fail(s, "\"%s\" is not an IPv6 address", s->word);
	if (!choice(s, gid_types, "GID type", &type))
		return false;
	if (!s->dry) {
		d->port.gid[index] = g;
		d->port.gid_type[index] = (uint8_t)type;
		fake_device_event(d, IBV_EVENT_GID_CHANGE);
	}
	return true;
}

/* The descriptor stays the caller's, who keeps it open. */
static bool parse_peer(struct parser *s)
{
	struct peer p;
	uint64_t fd = 0;
	int i = 0;
	if (!number(s, "address", 4096, 1ull << 56, NULL, &p.addr) || !number(s, "descriptor", 0, 1 << 20, NULL, &fd) ||
	    !number(s, "bytes", 1, 1ull << 40, sizes, &p.len))
		return false;
	p.fd = (int)fd;
	while (i < MAX_PEERS && s->c->peers[i].len)
		i++;
	if (i == MAX_PEERS)
		return fail(s, "there are %d pieces of peer memory already", MAX_PEERS);
	s->c->peers[i] = p;
	return true;
}

/* parse_kill is for what happens to one queue pair: kill, or overrun of the completion queue of its receives. */
static bool parse_kill(struct parser *s, bool overrun)
{
	struct fake_device *d;
	uint64_t qpn = 0;
	if (!device(s, &d) || !number(s, "queue pair number", 1, 0xffffff, NULL, &qpn))
		return false;
	struct fake_qp *qp = s->dry ? NULL : fake_qp_find(d, (uint32_t)qpn);
	if (qp && overrun && qp->rcq)
		fake_overrun(qp->rcq);
	if (qp && !overrun) {
		fake_async(qp->o.ctx, qp, IBV_EVENT_QP_FATAL);
		fake_qp_error(qp, IBV_QPS_ERR);
	}
	return true;
}

/* parse_cm is for what the connection manager does by itself. */
static bool parse_cm(struct parser *s)
{
	/* RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_TIMEWAIT_EXIT, and RDMA_CM_EVENT_ESTABLISHED where nobody asked for it */
	static const int types[] = {[2] = 14, [3] = 15, [4] = 9};
	struct fake_device *d = NULL;
	int a;
	if (!choice(s, cm_names, "what the connection manager does", &a) || (a == 1 && !device(s, &d)))
		return false;
	if (s->dry)
		return true;
	if (a == 0)
		fake_cm_expire();
	else if (a == 1)
		fake_cm_remove(d);
	else
		fake_cm_tell_all(types[a]);
	return true;
}

static bool parse_line(struct parser *s)
{
	struct config *c = s->c;
	struct fake_device *d;
	uint64_t n, v;
	int a, b;
	char verb[sizeof(s->word)];
	strcpy(verb, s->word);
#define IS(name) (!strcmp(verb, name))
	if (IS("reset")) {
		reset(s);
	} else if (IS("devices")) {
		if (!number(s, "devices", 0, MAX_DEVICES, NULL, &n))
			return false;
		c->devices = (int)n;
	} else if (IS("mode")) {
		if (!choice(s, mode_names, "mode", &a))
			return false;
		c->mode = (enum mode)a;
	} else if (IS("delay") || IS("drop") || IS("status")) {
		const char *back = s->p;
		if (IS("delay") && word(s) && isdigit((unsigned char)s->word[0])) {
			s->p = back;
			return duration(s, &c->delay_ns);
		}
		s->p = back;
		v = 0;
		if (!choice(s, side_names, "side", &a) || !nth(s, &n))
			return false;
		if (IS("status") && !choice(s, status_list, "status", &b))
			return false;
		if (IS("delay") && a == SIDE_RECV)
			return fail(s, "only the completion of a send can be delayed");
		if (IS("delay") && !duration(s, &v))
			return false;
		add_rule(s, IS("delay") ? DELAY : IS("drop") ? DROP : STATUS, a, n, IS("status") ? (uint64_t)b : v);
	} else if (IS("seed")) {
		return number(s, "seed", 0, UINT64_MAX, NULL, &c->seed);
	} else if (IS("loss")) {
		return number(s, "share of packets", 0, 100, percent, &c->loss);
	} else if (IS("memlock")) {
		return number(s, "bytes", 0, UINT64_MAX, sizes, &c->memlock);
	} else if (IS("peer")) {
		return parse_peer(s);
	} else if (IS("limit")) {
		if (!need(s, "name of a limit"))
			return false;
		if (!strcmp(s->word, "max_mr_size"))
			return number(s, "bytes", 1, 1ull << 40, sizes, &c->attr.max_mr_size);
		if (!strcmp(s->word, "max_qp_rd_atom")) {
			if (!number(s, "limit", 0, 255, NULL, &n))
				return false;
			c->attr.max_qp_rd_atom = c->attr.max_qp_init_rd_atom = (int)n;
			return true;
		}
		int *l = limit_of(c, s->word);
		if (!l)
			return fail(s, "there is no limit \"%s\"", s->word);
		if (!number(s, "limit", l == &c->max_inline ? 0 : 1, l == &c->max_inline ? MAX_INLINE : 1 << 20, NULL, &n))
			return false;
		*l = (int)n;
	} else if (IS("absent")) {
		if (!choice(s, absent_names, "feature", &a))
			return false;
		c->absent |= 1u << a;
	} else if (IS("link")) {
		if (!choice(s, link_names, "link layer", &a))
			return false;
		c->infiniband = a == 1;
	} else if (IS("odp")) {
		if (!choice(s, raw_names, "on-demand paging", &a))
			return false;
		c->odp = a == 1;
	} else if (IS("raw")) {
		if (!choice(s, raw_names, "raw packets", &a))
			return false;
		c->raw = a == 1;
	} else if (IS("timers")) {
		if (!choice(s, timer_names, "timers", &a))
			return false;
		c->instant = a == 1;
	} else if (IS("report")) {
		if (!choice(s, report_names, "time of the report", &a))
			return false;
		c->report = true;
	} else if (IS("fail")) {
		if (!need(s, "name of a function"))
			return false;
		for (a = 0; a < CALL_send_requests && strcmp(call_names[a], s->word); a++)
			;
		if (a == CALL_send_requests)
			return fail(s, "no function \"%s\" can fail by script", s->word);
		if (!nth(s, &n) || !named(s, errnos, "errno", &b))
			return false;
		add_rule(s, FAIL, a, n, (uint64_t)b);
	} else if (IS("partial")) {
		if (!choice(s, partial_names, "partial receives", &a))
			return false;
		c->partial = a == 1;
	} else if (IS("port")) {
		if (!device(s, &d) || !choice(s, port_names, "state of the port", &a))
			return false;
		if (!s->dry)
			fake_port_set(d, a ? IBV_PORT_ACTIVE : IBV_PORT_DOWN);
	} else if (IS("cable")) {
		if (!device(s, &d) || !choice(s, cable_names, "state of the cable", &a))
			return false;
		if (!s->dry)
			d->port.cut = a == 1;
	} else if (IS("event")) {
		if (!device(s, &d) || !named(s, device_events, "event", &a))
			return false;
		if (!s->dry)
			fake_device_event(d, (enum ibv_event_type)a);
	} else if (IS("gid")) {
		return parse_gid(s);
	} else if (IS("cm")) {
		return parse_cm(s);
	} else if (IS("kill") || IS("overrun")) {
		return parse_kill(s, IS("overrun"));
	} else {
		return fail(s, "there is no line \"%s\"", verb);
	}
	return true;
}

static bool parse(struct parser *s, const char *text, bool dry, struct config *c)
{
	*s = (struct parser){.p = text, .line = text, .lines = 1, .dry = dry, .c = c};
	for (;;) {
		if (word(s) && (!parse_line(s) || (word(s) && !fail(s, "unexpected \"%s\" after the end of the line", s->word))))
			return false;
		if (!*s->p)
			return true;
		if (*s->p == '\n') {
			s->lines++;
			s->line = s->p + 1;
		}
		s->p++;
	}
}

static bool started, started_ok;

static void first(void)
{
	if (started)
		return;
	started = started_ok = true;
	config = defaults;
	fake_devices_init();
}

static const char *run(const char *text)
{
	static struct parser s;
	struct config copy = config;
	if (!parse(&s, text, true, &copy))
		return s.err;
	/* From here nothing can go wrong. */
	parse(&s, text, false, &config);
	fake_wire_poke();
	return NULL;
}

/* fake_start reads the script in PENSTOCK_FAKE_VERBS, or in the file that it names after an @. */
bool fake_start(void)
{
	if (started)
		return started_ok;
	first();
	const char *env = getenv("PENSTOCK_FAKE_VERBS"), *err = NULL;
	char *text = NULL;
	size_t len = 0;
	if (!env)
		return true;
	if (env[0] == '@') {
		FILE *f = fopen(env + 1, "r");
		ssize_t n = f ? getdelim(&text, &len, 0, f) : -1;
		if (f)
			fclose(f);
		env = n >= 0 ? text : NULL;
		if (!env)
			err = "the file cannot be read, or is empty";
	}
	if (!err)
		err = run(env);
	free(text);
	if (err)
		fprintf(stderr, "PENSTOCK_FAKE_VERBS: %s\n", err);
	started_ok = !err;
	return started_ok;
}

/* penstock_fake_script obeys the lines of text, all or none. It returns NULL, or what is wrong and where; the message belongs to
 * the fake and is valid until the next call. */
EXPORT const char *penstock_fake_script(const char *text);
EXPORT const char *penstock_fake_script(const char *text)
{
	lock();
	fake_start();
	const char *err = run(text);
	unlock();
	return err;
}

/* penstock_fake_count says how often a function was called since the start or the last reset, or how many send_requests,
 * recv_requests, completions, bytes, rnr_naks, retries or drops there were; UINT64_MAX for an unknown name. */
EXPORT uint64_t penstock_fake_count(const char *name);
EXPORT uint64_t penstock_fake_count(const char *name)
{
	uint64_t n = UINT64_MAX;
	lock();
	for (int i = 0; i < CALLS; i++)
		if (!strcmp(call_names[i], name))
			n = counts[i];
	unlock();
	return n;
}

__attribute__((destructor)) static void finish(void)
{
	while (rules)
		drop_rule(&rules);
}
