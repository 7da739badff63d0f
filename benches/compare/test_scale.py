"""What `scale` makes of a machine and of what it measured: `python3 -m unittest` in this folder."""
import unittest
import xml.dom.minidom

import chart
import scale
import scale_report
from cpus import Machine, parse_list

SERIES = {it.key: it for it in scale.SERIES}


def result(key, cores, *rates, **fields):
    """Runs that differ by their rates only."""
    made = dict(p50=1, p99=2, cpu=10, wake_ups=1, server_percent=10, client_percent=10,
                other_percent=0, busiest="a|b", busiest_percent=10, answers=9, errors=0)
    runs = [scale.Run(rate=rate, **{**made, **fields}) for rate in rates]
    return scale.Result(SERIES[key], cores, cores, runs)


def verdicts(*results):
    return [scale_report.judge(results, aim)[1] for aim in scale_report.AIMS]


class Cores(unittest.TestCase):
    def check(self, machine, counts, *shares):
        self.assertEqual(machine.counts(), counts)
        for count, (server, generator) in zip(counts, shares):
            self.assertEqual(machine.server_cpus(count), server)
            self.assertEqual(machine.generator_cpus(count), generator)

    def test_half_of_the_machine_is_the_servers_and_the_other_half_the_generators(self):
        plain = lambda count: Machine(tuple((cpu,) for cpu in range(count)))
        self.check(plain(2), [1], ({0}, {1}))
        self.check(plain(4), [1, 2], ({0}, {2, 3}), ({0, 1}, {2, 3}))
        self.check(plain(12), [1, 2, 4, 6], ({0}, set(range(6, 12))))
        self.assertEqual(plain(16).counts(), [1, 2, 4, 8])
        self.assertEqual(plain(64).counts(), [1, 2, 4, 8, 16, 32])

    def test_one_core_is_shared_and_said(self):
        machine = Machine(((3,),))
        self.check(machine, [1], ({3}, {3}))
        self.assertIn("too few", " ".join(machine.remarks([1])))

    def test_threads_of_one_core_are_one_core(self):
        self.check(Machine(((0, 4), (1, 5), (2, 6), (3, 7))), [1, 2],
                   ({0}, {2, 6, 3, 7}), ({0, 1}, {2, 6, 3, 7}))

    def test_a_quota_leaves_fewer(self):
        self.assertEqual(Machine(tuple((cpu,) for cpu in range(64)), 4.5).counts(), [1, 2])

    def test_more_cores_than_half_leave_the_rest_to_the_generator(self):
        self.assertEqual(Machine(tuple((cpu,) for cpu in range(4))).generator_cpus(3), {3})

    def test_lists_of_the_kernel_are_read(self):
        self.assertEqual(parse_list("0-2,8\n"), {0, 1, 2, 8})
        self.assertEqual(parse_list("\n"), set())


class Aims(unittest.TestCase):
    def test_what_was_not_measured_is_neither_met_nor_missed(self):
        self.assertEqual(verdicts(result("hot", 1, 100)), ["not measurable here"] * 4)

    def test_ratios_are_taken_round_by_round(self):
        self.assertEqual(verdicts(result("hot", 1, 100, 200), result("hot", 8, 600, 1200))[2], "met")
        self.assertIn("missed", verdicts(result("hot", 1, 100), result("hot", 8, 590))[2])

    def test_instances_are_compared_on_the_same_cores(self):
        self.assertEqual(verdicts(result("python1", 8, 100), result("python4", 8, 350))[3], "met")

    def test_failed_requests_meet_nothing(self):
        failed = result("hot", 8, 900, errors=1)
        self.assertIn("requests failed", verdicts(result("hot", 1, 100), failed)[2])

    def test_a_miss_says_who_was_busy(self):
        busy = result("hot", 8, 500, client_percent=790)
        self.assertIn("bounded by generator", verdicts(result("hot", 1, 100), busy)[2])
        self.assertIn("one thread", scale_report.bound(result("hot", 8, 1, busiest_percent=97)))
        self.assertIn("server", scale_report.bound(result("hot", 8, 1, server_percent=780)))


class Pages(unittest.TestCase):
    def test_every_row_has_as_many_cells_as_the_table_has_headings(self):
        failed = scale.Result(SERIES["hot"], 2, 2, problem="a | b")
        for line in scale_report.table([result("hot", 1, 100), failed]).splitlines():
            self.assertEqual(line.count("|"), len(scale_report.HEADINGS) + 1, line)

    def test_the_chart_is_well_formed_with_one_number_of_cores_and_with_many(self):
        for line in ([(1, 100)], [(1, 100), (2, 190), (8, 700)]):
            picture = xml.dom.minidom.parseString(chart.draw_over_cores({"a < b": line}))
            self.assertEqual(len(picture.getElementsByTagName("circle")), len(line))
        xml.dom.minidom.parseString(chart.draw_over_cores({}))


if __name__ == "__main__":
    unittest.main()
