#include "compress/plan/exchange_time.h"

namespace heddle {

double seconds_per_byte(const std::vector<TimedExchange>& exchanges) {
  const auto n = static_cast<double>(exchanges.size());
  double bytes = 0, seconds = 0;
  for (const TimedExchange& e : exchanges) {
    bytes += static_cast<double>(e.bytes);
    seconds += e.seconds;
  }
  if (bytes <= 0) return 0;
  double spread = 0, slope = 0;  // sums of x^2 and x y, x from the mean
  for (const TimedExchange& e : exchanges) {
    const double x = static_cast<double>(e.bytes) - bytes / n;
    spread += x * x;
    slope += x * e.seconds;
  }
  const double b = spread > 0 ? slope / spread : 0;
  return b > 0 && b * bytes <= seconds ? b : seconds / bytes;
}

}  // namespace heddle
