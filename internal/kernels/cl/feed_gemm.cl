#include "resident.h"
#include "ring_layout.h"
#include "ring.h"
#include "feed.h"

// feed_gemm: a row of a matrix by the weights: with k = (uint)param and m = param>>32, the packet is k floats x, the weights are k*m floats W by rows, and the row of the result is m floats
// x*W. The packets of a batch are the rows of the left matrix. The value is the version of the weights. A packet of another length is dropped. Sums are made in order, without fused
// multiply-add, so that every runtime gets the same bits.
#pragma OPENCL FP_CONTRACT OFF
PS_FN float number(__global const uchar *p) {
	return as_float(ps_le32(p));
}
PS_FN void gemm(ps_packet *k) {
	ulong n = (uint)k->param, m = k->param >> 32;
	if (n == 0 || m == 0 || k->len != 4 * n || k->row_len / 4 < m || k->weights_len / 4 / n < m) {
		k->flags |= PS_DROP;
		return;
	}
	__global const uchar *x = k->payload + k->off;
	__global const float *w = (__global const float *)k->weights;
	__global float *row = (__global float *)k->row;
	for (ulong c = ps_local_id(); c < m; c += ps_local_size()) {
		float sum = 0.0f;
		for (ulong i = 0; i < n; i++) {
			float part = number(x + 4 * i) * w[i * m + c];
			sum += part;
		}
		row[c] = sum;
	}
	k->value = k->version;
}
PS_FEED(feed_gemm, gemm)
