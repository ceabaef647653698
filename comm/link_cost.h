// What a collective costs on links of a given latency and bandwidth: the alpha-beta model (Thakur,
// Rabenseifner and Gropp 2005), for the algorithms of comm/collectives.h, whose segments hide
// latency.
//
//   const LinkCost link = measure_link(comm);
//   double s = collective_seconds("all_reduce", 4 << 20, 64, link);
#pragma once

#include <string>

#include "comm/collectives.h"

namespace heddle {

struct LinkCost {
  double latency_s = 0;         // alpha: of a message, however short
  double seconds_per_byte = 0;  // beta
  CollectiveOptions collectives = {};
};

// Of one call on `bytes` of payload, counted as in comm/collectives.h. The collective is named as
// in Communicator::traffic(); throws InputError for another name.
double collective_seconds(const std::string& collective, double bytes, int ranks,
                          const LinkCost& link);

// How many messages' latencies that time holds at least, one behind the other. Of chunks longer
// than a segment one: whether the next segments hide the others depends on the bandwidth.
double latencies(const std::string& collective, double bytes, int ranks);

// The sum of latencies() over the calls that `comm` has made under its present tag since traffic()
// gave `before`.
double latencies_since(const CollectiveTraffic& before, const Communicator& comm);

// The payload of a call, bytes, from the mean over ranks of what they send in it.
double payload_of_sent(const std::string& collective, double sent, int ranks);

// Alpha alone, from all-reduces of a few bytes; the same on all ranks, 0 where there is one.
double measure_latency(Communicator& comm);

// Alpha and beta that explain what all-reduces of two sizes take; the same on all ranks, both 0
// where there is one. Takes 14 P messages' latency and 14 P times 256 KiB: on four links of 100
// Mbit/s about a second.
LinkCost measure_link(Communicator& comm);

}  // namespace heddle
