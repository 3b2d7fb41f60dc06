package main

/*
#define PENSTOCK_NO_PROTOTYPES
#include "penstock.h"
*/
import "C"

//export penstock_dma
func penstock_dma(memory C.penstock_handle, to *C.char, n C.size_t, out *C.penstock_error) C.int32_t {
	return counted(out, func() (C.int32_t, error) {
		can, why, err := table.DMA(uint64(memory))
		if err != nil {
			return 0, err
		}
		text(why, to, n)
		if can {
			return 1, nil
		}
		return 0, nil
	})
}
