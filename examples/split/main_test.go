package main

func Example() {
	main()
	// Output: 100 packets, 42 bytes of headers each, the payloads' numbers add up to 4950
}
