package main

func vecAVX2()   {}
func vecAVX512() {}
