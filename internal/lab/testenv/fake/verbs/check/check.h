/* A conformance program of verbs: it knows libibverbs and nothing of who serves it. Every check runs in a process of its own and
 * prints one line: "ok NAME DETAIL", "FAIL NAME WHY", "absent NAME ERRNO". */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { BUF = 1 << 20, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

/* One end: the initiator is L, the responder R. Each has its own domain, queue and memory on the same device. */
struct side {
	struct ibv_pd *pd;
	struct ibv_comp_channel *ch;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_srq *srq;
	char *buf;
	struct ibv_mr *mr;
};

extern struct side L, R;
extern struct ibv_context *ctx;
extern union ibv_gid gid;
extern int gid_index;
extern struct ibv_device_attr dev_attr;
extern struct ibv_port_attr port_attr;

/* What pair builds; a check changes it before. */
extern struct options {
	enum ibv_qp_type type;
	int wr, sge, inl, cqe;
	int rnr_retry, retry_cnt, timeout, min_rnr;
	unsigned qp_access, mr_access; /* of R */
	uint32_t sq_psn, rq_psn;
	bool srq, sig_all;
} opt;

struct check {
	const char *name; /* bare-NAME opens its device itself */
	void (*run)(void);
	bool paired; /* L and R are connected when it begins, and closed after it */
};

extern const struct check *const suites[]; /* what a program consists of, ended by NULL */

void say(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* adds to the detail of the line */
void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
void absent(int err) __attribute__((noreturn));
const char *st(int status);
const char *errname(int err);

#define MUST(cond, ...) do { if (!(cond)) fail(__VA_ARGS__); } while (0)
#define ZERO(call) do { int e_ = (call); if (e_) fail("%s: %s", #call, errname(e_ < 0 ? errno : e_)); } while (0)
#define PTR(call) ({ errno = 0; void *p_ = (call); if (!p_) fail("%s: %s", #call, errname(errno)); p_; })

void open_device(void);
void side_open(struct side *s, unsigned mr_access);
void side_close(struct side *s);
struct ibv_qp *make_qp(struct side *s);
int to_init(struct ibv_qp *qp, unsigned access);
int to_rtr(struct ibv_qp *qp, uint32_t dest, const union ibv_gid *dgid, uint32_t psn);
int to_rts(struct ibv_qp *qp, uint32_t psn);
int to_state(struct ibv_qp *qp, enum ibv_qp_state s);
void connect_qps(struct ibv_qp *a, struct ibv_qp *b);
void pair(void);
void unpair(void);
int state_of(struct ibv_qp *qp);

int send_wr(struct ibv_qp *qp, struct ibv_send_wr *wr);
int post(struct side *s, enum ibv_wr_opcode op, uint64_t id, size_t off, uint32_t len, size_t remote_off, unsigned flags);
int post_to(struct side *s, enum ibv_wr_opcode op, uint64_t id, struct ibv_sge sge, uint64_t addr, uint32_t rkey, unsigned flags);
int recv_at(struct side *s, uint64_t id, size_t off, uint32_t len);
struct ibv_wc wait_wc(struct ibv_cq *cq);
bool wait_wc_for(struct ibv_cq *cq, struct ibv_wc *wc, int seconds);
void want(struct ibv_cq *cq, uint64_t id, int status);
bool none(struct ibv_cq *cq);
bool readable(int fd, int ms);
bool next_event(struct ibv_async_event *ev, int ms); /* takes the next asynchronous event, when one comes within ms */
void fill(char *p, size_t n, unsigned seed);
struct ibv_sge sge(struct side *s, size_t off, uint32_t len);

#endif
