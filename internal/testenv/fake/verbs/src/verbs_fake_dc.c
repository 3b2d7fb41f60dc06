/* Dynamically connected transport as libmlx5 has it (mlx5dv): targets that anybody with their key reaches, and initiators that name a target with each
 * request. The fake's library stands in for libmlx5.so.1 as well. What is known of the hardware is in libmlx5's sources and the kernel's; what a target
 * answers to a wrong key is not, here it is a remote access error that leaves the target alone. */
#include "verbs_fake.h"

#include <infiniband/mlx5dv.h>
#include <stdlib.h>

struct fake_dv {
	struct mlx5dv_qp_ex ex;
	struct fake_qp *qp;
};

static void wr_set_dc_addr(struct mlx5dv_qp_ex *m, struct ibv_ah *ah, uint32_t dctn, uint64_t key)
{
	struct fake_qp *qp = container(m, struct fake_dv, ex)->qp;
	if (!qp->batch.err && qp->batch.n == 0)
		qp->batch.err = EINVAL; /* a setter before the request it belongs to */
	if (qp->batch.err)
		return;
	struct fake_dc_addr *d = &qp->batch.dc[qp->batch.n - 1];
	*d = (struct fake_dc_addr){.ah = ah, .number = dctn, .key = key, .wr = &qp->batch.wr[qp->batch.n - 1]};
}

EXPORT bool mlx5dv_is_supported(struct ibv_device *d)
{
	(void)d;
	return !(config.absent & ABSENT_DC);
}

EXPORT struct ibv_qp *mlx5dv_create_qp(struct ibv_context *c, struct ibv_qp_init_attr_ex *a, struct mlx5dv_qp_init_attr *m)
{
	if (a->qp_type != IBV_QPT_DRIVER || !m)
		return fake_create_qp_ex(c, a);
	int type = m->dc_init_attr.dc_type;
	if ((config.absent & ABSENT_DC) || m->comp_mask != MLX5DV_QP_INIT_ATTR_MASK_DC || (type != DC_TARGET && type != DC_INITIATOR)) {
		errno = (config.absent & ABSENT_DC) ? EOPNOTSUPP : EINVAL;
		return NULL;
	}
	if (a->comp_mask != (type == DC_TARGET ? IBV_QP_INIT_ATTR_PD : IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)) {
		errno = EINVAL;
		return NULL;
	}
	return fake_create_qp(c, a, type, type == DC_TARGET ? m->dc_init_attr.dct_access_key : 0);
}

EXPORT struct mlx5dv_qp_ex *mlx5dv_qp_ex_from_ibv_qp_ex(struct ibv_qp_ex *q)
{
	struct fake_qp *qp = (struct fake_qp *)q;
	if (!qp->dv) {
		struct fake_dv *dv = calloc(1, sizeof(*dv));
		if (!dv)
			return NULL;
		dv->qp = qp;
		if (qp->dc == DC_INITIATOR)
			dv->ex.wr_set_dc_addr = wr_set_dc_addr;
		qp->dv = dv;
	}
	return &((struct fake_dv *)qp->dv)->ex;
}

/* fake_dc_target is whom a request reaches; NULL: nobody answers. */
struct fake_qp *fake_dc_target(struct fake_qp *qp, struct wqe *w)
{
	struct fake_device *dev = fake_route(qp->dev, &w->av);
	struct fake_qp *p = dev ? fake_qp_find(dev, w->dct) : NULL;
	return p && p->dc == DC_TARGET && p->state == IBV_QPS_RTR ? p : NULL;
}

/* fake_dc_enqueue puts the address of a request of the current batch into the queue. */
int fake_dc_enqueue(struct fake_qp *qp, struct ibv_send_wr *wr, struct wqe *w)
{
	for (int i = 0; i < qp->batch.n; i++) {
		struct fake_dc_addr *d = &qp->batch.dc[i];
		if (&qp->batch.wr[i] != wr || d->wr != wr)
			continue;
		struct fake_ah *ah = (struct fake_ah *)d->ah;
		if (!ALIVE(ah, K_AH, "wr_set_dc_addr") || ah->ibv.pd != qp->ibv.qp_base.pd)
			return EINVAL;
		w->av = ah->attr;
		w->dct = d->number;
		w->dc_key = d->key;
		d->wr = NULL;
		return 0;
	}
	return EINVAL; /* without an address, or posted by ibv_post_send */
}
