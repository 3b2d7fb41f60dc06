package main

/*
#define PENSTOCK_NO_PROTOTYPES
#include "penstock.h"
*/
import "C"

import "github.com/penstock-io/penstock/bindings/abi"

//export penstock_log
func penstock_log(to *C.char, n C.size_t, timeout C.int64_t, out *C.penstock_error) C.int64_t {
	return said(to, n, out, func() (string, error) {
		ctx, end := abi.Within(int64(timeout))
		defer end()
		room := uint64(n)
		if to == nil {
			room = 0
		}
		return table.Log(ctx, room), nil
	})
}
