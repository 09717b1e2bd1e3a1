/* Prints the addresses of each name, sorted, as the C library resolves it: "NAME: ADDRESS ADDRESS".
   "none" stands for a name without an address, "error N" for any other failure. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define MOST 256

static int order(const void *a, const void *b) { return strcmp(a, b); }

static void resolve(const char *name) {
	static char all[MOST][INET6_ADDRSTRLEN];
	struct addrinfo hints, *list, *one;
	int n = 0, i, code;

	memset(&hints, 0, sizeof hints);
	hints.ai_family = AF_UNSPEC;
	hints.ai_socktype = SOCK_STREAM;
	code = getaddrinfo(name, "80", &hints, &list);
	printf("%s:", name);
#ifdef EAI_NODATA
	if (code == EAI_NODATA)
		code = EAI_NONAME;
#endif
	if (code != 0) {
		if (code == EAI_NONAME)
			printf(" none\n");
		else
			printf(" error %d\n", code);
		return;
	}
	for (one = list; one != NULL && n < MOST; one = one->ai_next) {
		const void *at = &((struct sockaddr_in6 *)one->ai_addr)->sin6_addr;
		if (one->ai_family == AF_INET)
			at = &((struct sockaddr_in *)one->ai_addr)->sin_addr;
		if (inet_ntop(one->ai_family, at, all[n], sizeof all[n]) != NULL)
			n++;
	}
	freeaddrinfo(list);
	qsort(all, n, sizeof all[0], order);
	for (i = 0; i < n; i++)
		printf(" %s", all[i]);
	printf("\n");
}

int main(int argc, char **argv) {
	int i;

	for (i = 1; i < argc; i++)
		resolve(argv[i]);
	return 0;
}
