package nettest

func agentMain() {}
