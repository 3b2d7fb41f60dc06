package main

func Example() {
	main()
	// Output: 100 packets: 4200 bytes of headers, 100000 bytes of payload
}
