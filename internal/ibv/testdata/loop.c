/* The loop of BenchmarkPostPoll in C, on the same library: a chain of writes between two queue pairs of one device is built and posted in one
 * call, and its one completion polled. Arguments: rounds, requests of a chain. It prints nanoseconds of processor time for a request. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX 1024
#define CHECK(x) do { if (!(x)) { fprintf(stderr, "%s failed\n", #x); exit(1); } } while (0)

static void connect_qp(struct ibv_qp *qp, struct ibv_qp *peer, const union ibv_gid *gid)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .sgid_index = 3, .hop_limit = 64}}};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	long rounds = atol(argv[1]);
	int depth = atoi(argv[2]);
	CHECK(rounds > 0 && depth > 0 && depth <= MAX);
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && *list);
	struct ibv_context *ctx = ibv_open_device(*list);
	CHECK(ctx);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 128, NULL, NULL, 0);
	char *buf = aligned_alloc(4096, 65536);
	CHECK(pd && cq && buf);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, 65536, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = (uint32_t)depth, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);
	union ibv_gid gid;
	CHECK(mr && a && b && !ibv_query_gid(ctx, 1, 3, &gid));
	connect_qp(a, b, &gid);
	connect_qp(b, a, &gid);
	static struct ibv_send_wr wr[MAX], *bad;
	static struct ibv_sge sge[MAX];
	static struct ibv_wc wc[64];
	struct timespec from, to;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
	for (long r = 0; r < rounds; r++) {
		for (int i = 0; i < depth; i++) {
			sge[i] = (struct ibv_sge){(uintptr_t)buf + (size_t)i * 8, 8, mr->lkey};
			wr[i].wr_id = (uint64_t)i;
			wr[i].next = i + 1 < depth ? &wr[i + 1] : NULL;
			wr[i].sg_list = &sge[i];
			wr[i].num_sge = 1;
			wr[i].opcode = IBV_WR_RDMA_WRITE;
			wr[i].send_flags = i + 1 < depth ? 0 : IBV_SEND_SIGNALED;
			wr[i].wr.rdma.remote_addr = (uintptr_t)buf + 32768 + (size_t)i * 8;
			wr[i].wr.rdma.rkey = mr->rkey;
		}
		CHECK(!ibv_post_send(a, wr, &bad));
		int n;
		while ((n = ibv_poll_cq(cq, 64, wc)) == 0)
			;
		CHECK(n == 1 && wc[0].status == IBV_WC_SUCCESS && wc[0].wr_id == (uint64_t)depth - 1);
	}
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
	CHECK(!memcmp(buf, buf + 32768, (size_t)depth * 8));
	printf("%.3f\n", ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / (double)rounds / depth);
	return 0;
}
