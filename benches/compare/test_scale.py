"""What `scale` makes of a machine and of what it measured: `python3 -m unittest` in this folder."""
import unittest
import xml.dom.minidom

import chart
import scale
import scale_report
from cpus import Machine, parse_list, quota

SERIES = {it.key: it for it in scale.SERIES}


def result(key, cores, *rates, **fields):
    """Runs that differ by their rates only; a round without a rate failed."""
    made = dict(p50=1, p99=2, cpu=10, wake_ups=1, server_percent=10, client_percent=10,
                other_percent=0, busiest="a|b", busiest_percent=10, ended_threads=0,
                answers=9, errors=0)
    runs = [scale.Run(rate=rate, round=turn, **{**made, **fields})
            for turn, rate in enumerate(rates, 1) if rate]
    problems = [f"round {turn}: no | answer" for turn, rate in enumerate(rates, 1) if not rate]
    return scale.Result(SERIES[key], cores, cores, runs, problems=problems)


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

    def test_the_least_of_all_groups_around_this_process_counts(self):
        def check(files, expected):
            self.assertEqual(quota(lambda path: files.get(path, "")), expected, files)

        check({}, 0)
        files = {"/proc/self/cgroup": "4:cpuset:/x\n3:cpu,cpuacct:/docker/x\n0::/user.slice/a/b\n"}
        check(files, 0)
        check({**files, "/sys/fs/cgroup/user.slice/a/b/cpu.max": "max 100000\n"}, 0)
        # One in between.
        files["/sys/fs/cgroup/user.slice/a/cpu.max"] = "450000 100000\n"
        check(files, 4.5)
        files["/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us"] = "-1\n"
        files["/sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us"] = "100000\n"
        check(files, 4.5)
        files["/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us"] = "150000\n"
        check(files, 1.5)
        files["/sys/fs/cgroup/cpu.max"] = "100000 100000\n"
        check(files, 1)
        files["/sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us"] = "0\n"
        check(files, 1)

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

    def test_rounds_that_failed_meet_nothing_and_shift_no_others(self):
        # By position the ratios would be 600 by 200, and 3.
        one, eight = result("hot", 1, 100, 200), result("hot", 8, None, 1200)
        self.assertEqual(scale_report.ratio(eight, one, "rate"), 6)
        for pair in ((one, eight), (result("hot", 1, None, 200), result("hot", 8, 600, 1200))):
            self.assertEqual(scale_report.judge(pair, scale_report.AIMS[2]),
                             (6, "**missed**: rounds failed"))
        nothing = verdicts(one, result("hot", 8, None, None))[2]
        self.assertEqual(nothing, "**not measured**: rounds failed")

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
        failed = scale.Result(SERIES["hot"], 2, 2, problems=["a | b"])
        partly = result("hot", 4, 100, None, 100, 100)
        for line in scale_report.table([result("hot", 1, 100), failed, partly]).splitlines():
            self.assertEqual(line.count("|"), len(scale_report.HEADINGS) + 1, line)

    def test_a_round_that_failed_is_in_the_row_of_those_that_did_not(self):
        row = scale_report.row(result("hot", 4, 100, None, 100, 100), None)
        self.assertEqual(row[-1], "0; 1 without a result, round 2: no / answer")
        self.assertEqual(scale_report.row(result("hot", 4, 100), None)[-1], "0")

    def test_wake_ups_are_a_lower_bound_where_threads_ended(self):
        place = scale_report.HEADINGS.index("wake-ups/req")
        for ended, expected in [(0, "1.00"), (2, "≥ 1.00")]:
            row = scale_report.row(result("hot", 4, 100, ended_threads=ended), None)
            self.assertEqual(row[place], expected)

    def test_the_chart_is_well_formed_with_one_number_of_cores_and_with_many(self):
        for line in ([(1, 100)], [(1, 100), (2, 190), (8, 700)]):
            picture = xml.dom.minidom.parseString(chart.draw_over_cores({"a < b": line}))
            self.assertEqual(len(picture.getElementsByTagName("circle")), len(line))
        xml.dom.minidom.parseString(chart.draw_over_cores({}))


if __name__ == "__main__":
    unittest.main()
