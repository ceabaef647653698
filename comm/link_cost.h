// Link cost: predicts how long a collective takes on links of a given latency and bandwidth, by the
// alpha-beta model (Thakur, Rabenseifner and Gropp 2005) of the algorithms in comm/collectives.h,
// whose segments hide latency; and measures a network's alpha and beta.
//
//   const LinkCost link = measure_link(comm);
//   double s = collective_seconds("all_reduce", 4 << 20, 64, link);
#pragma once

#include <string>

#include "comm/collectives.h"

namespace heddle {

struct LinkCost {
  double latency_s = 0;         // alpha: per message, of any length
  double seconds_per_byte = 0;  // beta: the inverse bandwidth
  CollectiveOptions collectives = {};
};

// Returns the seconds of one call on a payload of `bytes`, counted as n in comm/collectives.h; 0
// for one rank; of an exchange, with up to CollectiveOptions::pairs_ahead peers. `collective` is a
// name of Communicator::traffic(); throws InputError for any other.
double collective_seconds(const std::string& collective, double bytes, int ranks,
                          const LinkCost& link);

// Returns the least number of consecutive latencies in that time. For chunks longer than a segment
// this is 1: whether later segments hide the other latencies depends on the bandwidth.
double latencies(const std::string& collective, double bytes, int ranks);

// Returns the sum of latencies() over the calls that `comm` has made under its present tag since
// traffic() returned `before`.
double latencies_since(const CollectiveTraffic& before, const Communicator& comm);

// Returns a call's payload in bytes, given the bytes that a rank sends in it, averaged over ranks.
double payload_of_sent(const std::string& collective, double sent, int ranks);

// Measures alpha in seconds, from all-reduces of a few bytes. Collective; the same result on all
// ranks, 0 for one rank.
double measure_latency(Communicator& comm);

// Measures alpha and beta from all-reduces of two sizes. Collective; the same result on all ranks,
// both 0 for one rank. Takes 28 P latencies and the time to send 256 KiB 14 P times: about a second
// on four links of 100 Mbit/s.
LinkCost measure_link(Communicator& comm);

}  // namespace heddle
