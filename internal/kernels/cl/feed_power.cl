#include "resident.h"
#include "ring_layout.h"
#include "ring.h"
#include "feed.h"

// feed_power: samples of an instrument as floats, and the power of each channel. The packet, behind param>>32 bytes, is 16-bit signed little-endian samples, one of each of the (uint)param
// channels in turn; a last incomplete turn is left out. The row is one float for each channel, its mean square as a part of full scale (the integer mean of squares
// by 2^-30), and then the samples by 2^-15 in their order. The value is the number of turns. What does not fit in the row, and param without channels, is dropped.
PS_FN void power(ps_packet *k) {
	ulong skip = k->param >> 32, channels = (uint)k->param;
	ulong turns = channels == 0 || skip > k->len ? 0 : (k->len - skip) / 2 / channels;
	if (turns == 0 || k->row_len / 4 < channels || (k->row_len / 4 - channels) / channels < turns) {
		k->flags |= PS_DROP;
		return;
	}
	__global const uchar *p = k->payload + k->off + skip;
	__global float *row = (__global float *)k->row;
	for (ulong c = ps_local_id(); c < channels; c += ps_local_size()) {
		ulong sum = 0;
		for (ulong i = 0; i < turns; i++) {
			int s = (short)ps_le16(p + 2 * (i * channels + c));
			sum += (ulong)((long)s * s);
			row[channels + i * channels + c] = (float)s * (1.0f / 32768.0f);
		}
		row[c] = (float)(sum / turns) * (1.0f / 1073741824.0f);
	}
	k->value = turns;
}
PS_FEED(feed_power, power)
