// Command guest runs a static program, usually a test binary, inside a throw-away virtual machine with Debian's cloud
// kernel, and exits with the program's exit code. It is for what the kernel of the machine at hand may lack: IPVS,
// dummy devices, cgroup v2 alone.
//
// The same binary is the launcher and, as pid 1, the guest's init. QEMU emulates the processor where there is no KVM.
// Use it through the script "run", which fetches the kernel.
package main

import (
	"fmt"
	"os"
)

func main() {
	if os.Getpid() == 1 {
		initMain() // does not return
	}
	code, err := launch(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(125)
	}
	os.Exit(code)
}
