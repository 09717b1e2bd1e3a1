/*
 * pause holds a pod's namespaces open. It is PID 1 of the pod's PID namespace
 * when the pod shares one, so it also reaps what the containers orphan.
 *
 * Everything is blocked and fetched with sigwait: no handler, hence nothing to
 * race with, and PID 1 gets a blocked signal although its default action would
 * be dropped.
 */
#include <signal.h>
#include <sys/wait.h>

int main(void)
{
	sigset_t all;
	int sig;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, 0);

	for (;;) {
		if (sigwait(&all, &sig) != 0)
			continue;
		if (sig == SIGTERM || sig == SIGINT)
			return 0;
		if (sig == SIGCHLD)
			while (waitpid(-1, 0, WNOHANG) > 0)
				;
	}
}
