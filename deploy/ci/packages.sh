#!/usr/bin/env bash
# Installs the programs that tests start and pip cannot install; ends with 0 once all are there. As root on Debian or Ubuntu;
# elsewhere it says what is missing.
set -euo pipefail

# The dashboard in a browser; a service behind nginx; promtool, for the alerts; completion in zsh; databases of a service.
declare -A package=([chromium]=chromium [nginx]=nginx-light [promtool]=prometheus [zsh]=zsh [initdb]=postgresql [mariadbd]=mariadb-server)
PATH="$PATH:/usr/sbin:$(echo /usr/lib/postgresql/*/bin | tr ' ' ':')"

missing=()
for program in "${!package[@]}"; do
	command -v "$program" > /dev/null || missing+=("${package[$program]}")
done
[ ${#missing[@]} -eq 0 ] && exit 0

echo "tests want the Debian packages ${missing[*]}"
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get > /dev/null; then
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq --no-install-recommends "${missing[@]}" > /dev/null
